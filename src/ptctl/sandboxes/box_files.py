"""Files of a box, reached through a descriptor of its workspace: written before the command, read after its end.

The descriptor keeps the workspace's tmpfs alive when the box is gone, so nothing is ever copied to the host's disk and
the kernel enforces the size. Whatever is read back was written by hostile code: no link is followed, only regular
files are opened, and no more than a cap is read.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress

from ptctl.errors import RowFailure

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 2, 3, 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def file_system_uid(uid: int) -> Generator[None]:
    """Reach files as `uid` in this thread only, where the caller is root.

    Root itself may not create files in the box: uid 0 is not mapped there (EOVERFLOW). setfsuid changes the calling
    thread alone, so the other threads of the process are not touched. The kernel answers a change of fsuid by clearing
    the thread's parent-death signal and the process's dumpable flag; both are put back.
    """
    if os.geteuid() != 0:
        yield
        return
    death_signal = ctypes.c_int()
    _LIBC.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death_signal), 0, 0, 0)
    dumpable = _LIBC.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    _LIBC.setfsgid(uid)
    _LIBC.setfsuid(uid)
    try:
        yield
    finally:
        _LIBC.setfsuid(0)
        _LIBC.setfsgid(0)
        _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal.value, 0, 0, 0)
        if dumpable == 1:
            _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def split_path(path: str) -> list[str]:
    """Components of a relative POSIX path that stays where it is.

    Raises RowFailure(kind="sandbox") for an absolute or empty path, `..`, or a NUL byte.
    """
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise RowFailure(f"{path!r} is no plain relative path inside the workspace", kind="sandbox")
    return parts


def write_files(workspace_fd: int, files: Mapping[str, bytes], uid: int) -> None:
    """Create `files` with their directories; they belong to `uid`.

    Raises RowFailure(kind="sandbox") where a path leaves the workspace, is taken twice or does not fit.
    """
    if not files:
        return
    with file_system_uid(uid):
        for path, content in files.items():
            try:
                _write_file(workspace_fd, split_path(path), content)
            except OSError as error:
                raise RowFailure(f"cannot put {path!r} into the workspace: {error.strerror}", kind="sandbox") from error


def _write_file(workspace_fd: int, parts: list[str], content: bytes) -> None:
    with _parent(workspace_fd, parts, create=True) as directory_fd:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(parts[-1], flags, 0o644, dir_fd=directory_fd)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def read_files(
    workspace_fd: int, paths: Iterable[str], *, file_bytes: int, total_bytes: int, uid: int
) -> dict[str, bytes]:
    """Read `paths`; what is missing, no regular file, over a link or over a cap is left out.

    `file_bytes` caps one file and `total_bytes` all of them together (sparse files are larger than the workspace).
    """
    wanted = [(path, split_path(path)) for path in paths]
    found: dict[str, bytes] = {}
    if not wanted:
        return found
    left_bytes = total_bytes
    with file_system_uid(uid):
        for path, parts in wanted:
            content = _read_file(workspace_fd, parts, min(file_bytes, left_bytes))
            if content is not None:
                found[path] = content
                left_bytes -= len(content)
    return found


def _read_file(workspace_fd: int, parts: list[str], max_bytes: int) -> bytes | None:
    # Component by component with O_NOFOLLOW rather than openat2: the same guarantee on kernels before 5.6.
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with _parent(workspace_fd, parts, create=False) as directory_fd:
            descriptor = os.open(parts[-1], flags, dir_fd=directory_fd)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(max_bytes)


@contextmanager
def _parent(workspace_fd: int, parts: list[str], *, create: bool) -> Generator[int]:
    """Descriptor of the directory that holds the last of `parts`."""
    descriptor = os.dup(workspace_fd)
    try:
        for part in parts[:-1]:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=descriptor)
            deeper = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)
