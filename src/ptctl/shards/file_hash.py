"""sha256 of a file while it is being written.

The footer of a shard holds the sha256 of everything before the footer (`data_sha256`, over the first `data_bytes`
bytes), which is where the rows are. A reader verifies a shard at the speed of the disk, without its manifest and
without decoding it, and so can anyone: `head -c DATA_BYTES SHARD | sha256sum`. A hash over decoded values would not
depend on compression and row groups, but would hash twice the bytes and need a Parquet reader to be checked. The footer
cannot hold its own hash; the manifest has the sha256 of whole files.
"""

from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

PIECE_BYTES = 2**20
STEP_BYTES = 4 * 2**20
"""Less is not worth waking the thread."""


class GrowingFileHash:
    """Hashes a growing file on a thread of its own, from the page cache, behind the one that writes it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._sha256 = hashlib.sha256()
        self._done_bytes = 0
        self._asked_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._hashing: Future[None] | None = None

    def advance(self, written_bytes: int) -> None:
        """Say that so many bytes are in the file. Raises what went wrong with those before."""
        if written_bytes - self._asked_bytes < STEP_BYTES:
            return
        self._wait()
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="sha256")
        self._asked_bytes = written_bytes
        self._hashing = self._thread.submit(self._hash_to, written_bytes)

    def _hash_to(self, end: int) -> None:
        while self._done_bytes < end:
            piece = os.pread(self._descriptor, min(PIECE_BYTES, end - self._done_bytes), self._done_bytes)
            if not piece:
                raise OSError(errno.EIO, "bytes that were written are not there")
            self._sha256.update(piece)
            self._done_bytes += len(piece)

    def _wait(self) -> None:
        hashing, self._hashing = self._hashing, None
        if hashing is not None:
            hashing.result()

    def hexdigest(self, num_bytes: int) -> str:
        """sha256 (hex) of the first `num_bytes` bytes, which must be all that was told before or more."""
        self._wait()
        self._hash_to(num_bytes)
        return self._sha256.hexdigest()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()
        os.close(self._descriptor)


def hash_prefix(path: Path, num_bytes: int) -> str:
    """sha256 (hex) of the first `num_bytes` bytes of a file, or of all where there are fewer."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while num_bytes > 0 and (piece := file.read(min(num_bytes, PIECE_BYTES))):
            found.update(piece)
            num_bytes -= len(piece)
    return found.hexdigest()
