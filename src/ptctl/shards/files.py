"""Committing files: written under a temporary name, made durable, then given their name without clobbering.

Temporary names are `.NAME.tmp-HOST-PID-RANDOM` in the target directory: neither DuckDB's `*.parquet` globs nor
pyarrow's directory discovery see them. A name is given with link(2), which fails where the name exists and is atomic
on POSIX file systems, NFS and Lustre; no renameat2 flags are needed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ptctl.errors import CannotCreate, OutputError

TEMPORARY_MARK = ".tmp-"
_TEMPORARY_NAME = re.compile(r"\..*\.tmp-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")


def make_directory(directory: Path) -> None:
    """Create a directory and its parents. Raises CannotCreate."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotCreate(f"cannot create {directory}: {error.strerror}") from error


def temporary_name(path: Path) -> Path:
    """A name beside `path` that readers do not see and that tells who wrote it."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")


def fsync_path(path: Path) -> None:
    """Make a file or a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_file(temporary: Path, path: Path) -> None:
    """Give a finished, fsynced temporary file its name. Raises CannotCreate where the name exists already."""
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise CannotCreate(f"{path} exists already", hint="a committed file is never overwritten") from error
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # No hard links here. Names carry random parts, so that the check-then-rename race is between equals only.
        if path.exists():
            raise CannotCreate(f"{path} exists already", hint="a committed file is never overwritten") from error
        os.rename(temporary, path)
    else:
        os.unlink(temporary)
    fsync_path(path.parent)


@contextmanager
def committed_file(path: Path) -> Generator[Path]:
    """Yield a temporary path to write; on success make it durable as `path`, on error leave nothing.

    Raises CannotCreate where `path` exists, OutputError where the disk is full or fails.
    """
    make_directory(path.parent)
    temporary = temporary_name(path)
    try:
        yield temporary
        fsync_path(temporary)
        publish_file(temporary, path)
    except OSError as error:
        if isinstance(error, CannotCreate | OutputError):
            raise
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def committed_directory(path: Path) -> Generator[Path]:
    """Yield a temporary directory to fill; on success rename it to `path`, which must not exist."""
    make_directory(path.parent)
    temporary = temporary_name(path)
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            fsync_path(file)
        fsync_path(temporary)
        # rename(2) of a directory replaces only an empty one, so that a committed directory is never lost.
        if path.exists():
            raise CannotCreate(f"{path} exists already", hint="a committed directory is never overwritten")
        os.rename(temporary, path)
        fsync_path(path.parent)
    except OSError as error:
        if isinstance(error, CannotCreate | OutputError):
            raise
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Commit a small JSON file under a name that must not exist."""
    with committed_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def sweep(directory: Path) -> list[Path]:
    """Remove temporary names that a dead process of this host left in `directory`; returns what was removed."""
    removed: list[Path] = []
    if not directory.is_dir():
        return removed
    for path in directory.iterdir():
        written_by = _TEMPORARY_NAME.fullmatch(path.name)
        if written_by is None or written_by["host"] != socket.gethostname():
            continue
        pid = int(written_by["pid"])
        if pid == os.getpid() or Path(f"/proc/{pid}").exists():
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        removed.append(path)
    return removed
