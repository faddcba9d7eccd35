"""What `.ci/run` does where a browser is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"
TOOLS = ("bash", "date", "dirname", "env", "grep", "mktemp", "rm", "sed")
"""All that it needs as far as the browser. git is not among them: were the browser's absence overlooked, the run would
end there with another message, before it runs any tests."""


@pytest.mark.skipif(not RUN.exists() or shutil.which("bash") is None, reason="needs bash and the repository")
@pytest.mark.parametrize("apt_status", [0, 100])
def test_a_browser_that_cannot_be_installed_fails_the_run(tmp_path: Path, apt_status: int) -> None:
    """Whether apt-get fails or succeeds without a browser: the run ends there and says so."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    for name, script in {
        "apt-get": f"exit {apt_status}",
        "python3.11": f'exec "{sys.executable}" "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!{tmp_path}/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([str(RUN), "tests"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no browser: apt-get did not install chromium" in done.stdout
