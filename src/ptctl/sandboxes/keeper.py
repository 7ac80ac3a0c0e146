"""The keeper: a small process that removes what a launcher leaves when it ends, be it by SIGKILL.

It reads from a pipe that only the launcher writes to. End of file means that the launcher is gone: the keeper kills
the boxes that carry the launcher's token and removes cgroups and temporary directories. `--die-with-parent` alone
would not do: bwrap asks for that signal some milliseconds after it was started, and no signal removes a directory.

Run as a script (`python -I -S keeper.py TOKEN DIRECTORY…`), so it imports nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NUM_QUIET_SCANS = 3
"""Scans without a find after which nothing is left; a process that was just being started shows up in one of them."""
SCAN_INTERVAL_S = 0.05
MAX_SCANS = 200


class Keeper:
    """The launcher's end: holds the pipe open for as long as the boxes may run."""

    def __init__(self, token: str, directories: list[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, token, *(str(path) for path in directories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,  # Ctrl-C in the launcher's terminal must not reach it
        )

    def finish(self, timeout_s: float = 15.0) -> None:
        """Let it clean up, and wait for its end."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it was killed
                self._process.stdin.write(b"finished\n")
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it goes on by itself
            self._process.wait(timeout_s)


def marked_processes(token: str, marker: str = "PTCTL_BOX") -> list[int]:
    """Pids whose command line holds the argument pair MARKER TOKEN: bwrap and the init of each box.

    The command line and not the environment: the latter is hidden between different uids without CAP_SYS_PTRACE.
    """
    wanted = f"\0{marker}\0{token}\0".encode()
    found: list[int] = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and wanted in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
    return found


def kill_marked(token: str, num_quiet_scans: int = NUM_QUIET_SCANS) -> None:
    """Kill until `num_quiet_scans` in a row find nothing."""
    num_quiet = 0
    for _ in range(MAX_SCANS):
        found = marked_processes(token)
        num_quiet = 0 if found else num_quiet + 1
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if num_quiet == num_quiet_scans:
            return
        time.sleep(SCAN_INTERVAL_S)


def remove_tree(directory: Path) -> None:
    """Remove a directory of files, or of cgroups, whose files cannot be unlinked but vanish with the directory."""
    for parent, directories, files in os.walk(directory, topdown=False):
        for name in files:
            with suppress(OSError):
                os.unlink(os.path.join(parent, name))
        for name in directories:
            with suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    with suppress(OSError):
        directory.rmdir()


def keep(token: str, directories: list[Path]) -> None:
    """Wait for the launcher's end, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    orderly = False
    while os.read(0, 4096):
        orderly = True  # the launcher says so before it closes, and then starts no more boxes
    kill_marked(token, 1 if orderly else NUM_QUIET_SCANS)
    for _ in range(50):  # a cgroup stays busy until its last process is reaped
        for directory in directories:
            remove_tree(directory)
        if not any(directory.exists() for directory in directories):
            return
        time.sleep(0.1)


if __name__ == "__main__":
    keep(sys.argv[1], [Path(path) for path in sys.argv[2:]])
