"""What docs/howto-backend.md shows is run as it stands, its backend against the conformance suite."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HOWTO = Path(__file__).parents[2] / "docs" / "howto-backend.md"
CONFIGURATION = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"


def test_the_blocks_of_the_howto_are_a_test_module_that_passes(tmp_path: Path) -> None:
    """A reader who copies them gets tests that pass: a program on OpenCL, and a backend that conforms."""
    blocks = re.findall(r"^```python\n(.*?)^```$", HOWTO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_howto.py").write_text("\n\n".join(blocks), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(CONFIGURATION, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_howto.py"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 30
