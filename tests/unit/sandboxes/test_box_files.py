from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptctl.errors import RowFailure
from ptctl.sandboxes.box_files import file_system_uid, read_files, split_path, write_files

ROOT = os.geteuid() == 0


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield tmp_path, descriptor
    os.close(descriptor)


def read(descriptor: int, *paths: str, file_bytes: int = 100, total_bytes: int = 1000) -> dict[str, bytes]:
    return read_files(descriptor, paths, file_bytes=file_bytes, total_bytes=total_bytes, uid=os.geteuid())


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b"])
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(RowFailure):
        split_path(path)


def test_write_and_read(workspace: tuple[Path, int]) -> None:
    path, descriptor = workspace
    write_files(descriptor, {"a": b"1", "d/e/f": b"2", "d/e/g": b""}, os.geteuid())
    assert (path / "d/e/f").read_bytes() == b"2"
    assert read(descriptor, "a", "d/e/f", "d/e/g", "absent", "d", "a/b") == {"a": b"1", "d/e/f": b"2", "d/e/g": b""}


def test_a_name_taken_twice_is_refused(workspace: tuple[Path, int]) -> None:
    for files in ({"a": b"", "a/b": b""}, {"d/e": b"", "d": b""}):
        with pytest.raises(RowFailure, match="cannot put"):
            write_files(workspace[1], files, os.geteuid())


def test_what_is_not_read(workspace: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory) -> None:
    path, descriptor = workspace
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("secret")
    (path / "plain").write_text("plain")
    (path / "link").symlink_to(outside / "secret")
    (path / "inner").symlink_to("plain")
    (path / "directory").symlink_to(outside)
    os.mkfifo(path / "fifo")
    with open(path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    paths = ("link", "inner", "directory/secret", "fifo", "sparse", "plain")
    num_open = len(os.listdir("/proc/self/fd"))
    assert read(descriptor, *paths) == {"plain": b"plain"}
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_caps(workspace: tuple[Path, int]) -> None:
    path, descriptor = workspace
    for name in ("a", "b", "c"):
        (path / name).write_bytes(b"12345")
    assert read(descriptor, "a", file_bytes=4) == {}
    assert read(descriptor, "a", file_bytes=5) == {"a": b"12345"}
    assert set(read(descriptor, "a", "b", "c", total_bytes=11)) == {"a", "b"}


@pytest.mark.skipif(not ROOT, reason="only root changes its uid")
def test_only_this_thread_changes_its_uid_and_nothing_stays_changed(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("x")
    private.chmod(0o600)
    tmp_path.chmod(0o755)
    libc = ctypes.CDLL(None)
    libc.prctl(1, 15, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGTERM
    elsewhere: list[str] = []
    now = threading.Event()

    def read_elsewhere() -> None:
        now.wait()
        elsewhere.append(private.read_text())

    thread = threading.Thread(target=read_elsewhere)
    thread.start()
    with file_system_uid(61000):
        with pytest.raises(PermissionError):
            private.read_text()
        now.set()
        thread.join()
    death_signal = ctypes.c_int()
    libc.prctl(2, ctypes.byref(death_signal), 0, 0, 0)
    libc.prctl(1, 0, 0, 0, 0)
    assert elsewhere == ["x"]
    assert private.read_text() == "x"
    assert death_signal.value == 15
    assert libc.prctl(3, 0, 0, 0, 0) == 1  # PR_GET_DUMPABLE
