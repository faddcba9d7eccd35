"""``python -m async_orch`` is the ``async-orch`` command."""

from __future__ import annotations

import sys

from async_orch.cli import main

if __name__ == "__main__":
    sys.exit(main())
