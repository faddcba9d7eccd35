"""A log that is still being written."""

from __future__ import annotations

from pathlib import Path

from async_orch.analysis._scan import Scanner
from async_orch.analysis._summary import Analysis, summarize_frames

__all__ = ["Follower"]

_CHUNK_NBYTES = 1 << 17


class Follower:
    """Reads what a plain-text log gains, piece by piece. A file that became shorter, or another file of the same name,
    as after a rotation, is read from its start; what was read before still counts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scanner = Scanner()
        self._identity: tuple[int, int] | None = None
        self._position = 0

    def poll(self) -> bool:
        """Read what is new; True if anything was. Raises `OSError` if the file cannot be opened or read."""
        with self._path.open("rb") as file:
            status = self._path.stat()
            identity = (status.st_dev, status.st_ino)
            if self._identity is not None and (identity != self._identity or status.st_size < self._position):
                self._scanner.end()
                self._position = 0
            self._identity = identity
            file.seek(self._position)
            grown = False
            while data := file.read(_CHUNK_NBYTES):
                self._scanner.feed(data)
                self._position += len(data)
                grown = True
            return grown

    def analysis(self) -> Analysis:
        """What was read up to now. A last line that is not ended yet is not part of it."""
        frames = self._scanner.frames()
        return Analysis(frames.reading, summarize_frames(frames))
