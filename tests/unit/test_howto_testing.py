"""What docs/howto-testing.md shows is run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HOWTO = Path(__file__).parents[2] / "docs" / "howto-testing.md"


def test_the_blocks_of_the_howto_are_a_test_module_that_passes(tmp_path: Path) -> None:
    """All Python blocks together form one module of tests, run by pytest without any plugin or configuration."""
    blocks = re.findall(r"^```python\n(.*?)^```", HOWTO.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    (tmp_path / "test_howto.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
