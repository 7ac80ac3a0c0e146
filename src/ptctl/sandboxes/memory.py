"""The ladder of memory limits: a cgroup v2 that was delegated to us, else a cgroup v1 as root, else an RSS watchdog.

The ladder is climbed once for each sandbox object. A cgroup is exact: the kernel refuses the page. The watchdog looks
every `interval_s`, so a command may pass its limit by what it can touch in that time.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ptctl.protocols import SandboxLimits

INODE_BYTES = 1024
"""What an empty file of a tmpfs costs the kernel, roughly; counted by the watchdog."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxHandles:
    """What a memory limit needs of a box that is set up and held back."""

    init_pid: int
    """Host pid of the box's init, so far its only process."""
    proc_fd: int
    """The box's own /proc, which lists the processes of its pid namespace."""
    tmpfs_fds: tuple[int, ...]
    """Directories of its tmpfs mounts."""


class MemoryLimit(Protocol):
    """The limit of one box."""

    @property
    def interval_s(self) -> float | None:
        """How often `exceeded` must be asked while the box runs; None: never, the kernel kills."""
        ...

    def exceeded(self) -> bool:
        """Whether the box must be killed now."""
        ...

    def ran_out(self) -> bool:
        """Whether a process of the box was killed for memory."""
        ...

    def remove(self) -> None:
        """Release it; the box has no process any more."""
        ...


class MemoryControl(Protocol):
    """A rung of the ladder."""

    @property
    def means(self) -> str:
        """Its name for `enforces`."""
        ...

    @property
    def directory(self) -> Path | None:
        """Directory that holds the limits of all boxes of one launcher; None where there is none."""
        ...

    def limit(self, name: str, limits: SandboxLimits, box: BoxHandles) -> MemoryLimit:
        """Put the box under a limit. Raises OSError where the kernel refuses."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """A cgroup for each box, in `directory`."""

    means: str
    directory: Path
    version: int

    def limit(self, name: str, limits: SandboxLimits, box: BoxHandles) -> CgroupLimit:
        """Make the cgroup of one box and move the box into it."""
        if not self.directory.is_dir():
            self.directory.mkdir(exist_ok=True)
            if self.version == 2:
                (self.directory / "cgroup.subtree_control").write_text("+memory")
        path = self.directory / name
        path.mkdir()
        limit = CgroupLimit(path=path, version=self.version)
        try:
            for file, value in cgroup_settings(self.version, limits):
                if (path / file).exists():  # the swap files depend on how the kernel was built and booted
                    (path / file).write_text(value)
            (path / "cgroup.procs").write_text(str(box.init_pid))
        except OSError:
            limit.remove()
            raise
        return limit


def cgroup_settings(version: int, limits: SandboxLimits) -> list[tuple[str, str]]:
    """Files of a cgroup and what is written into them, in the order that the kernel wants."""
    if version == 2:
        return [
            ("memory.max", str(limits.memory_bytes)),
            ("memory.swap.max", "0"),
            ("memory.oom.group", "1"),
        ]
    # memory.memsw may not be below memory.limit, so the limit comes first.
    return [
        ("memory.limit_in_bytes", str(limits.memory_bytes)),
        ("memory.memsw.limit_in_bytes", str(limits.memory_bytes)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimit:
    """The cgroup of one box."""

    path: Path
    version: int
    interval_s: float | None = None

    def exceeded(self) -> bool:
        """Never: the kernel kills by itself."""
        return False

    def ran_out(self) -> bool:
        """Whether the kernel killed a process of this cgroup for memory."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        return read_counter(self.path / file, "oom_kill") > 0

    def remove(self) -> None:
        """Remove the directory; a dying process may hold it for a moment."""
        for _ in range(100):
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return
        # Left for the keeper, which tries again when the sandbox is closed.


def read_counter(path: Path, name: str) -> int:
    """Value of the line `name VALUE` of a cgroup file; 0 where there is no such line or file."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RssWatchdog:
    """No cgroup: sum the memory of the box's processes and tmpfs mounts every `interval_s`."""

    means: str = "rss watchdog"
    directory: Path | None = None
    interval_s: float = 0.02

    def limit(self, name: str, limits: SandboxLimits, box: BoxHandles) -> WatchdogLimit:
        """Watch one box."""
        return WatchdogLimit(box=box, max_bytes=limits.memory_bytes, interval_s=self.interval_s)


class WatchdogLimit:
    """The watch over one box."""

    def __init__(self, *, box: BoxHandles, max_bytes: int, interval_s: float) -> None:
        self._box = box
        self._max_bytes = max_bytes
        self.interval_s: float | None = interval_s
        self._ran_out = False

    def exceeded(self) -> bool:
        """Whether the box uses more than its limit now."""
        used_bytes = tmpfs_bytes(self._box.tmpfs_fds)
        if used_bytes + processes_bytes(self._box.proc_fd, exact=False) > self._max_bytes:
            # Resident pages that forked processes share are counted once for each of them: ask for the proportional
            # share before killing. It costs a walk over the page tables, so not at every look.
            self._ran_out = used_bytes + processes_bytes(self._box.proc_fd, exact=True) > self._max_bytes
        return self._ran_out

    def ran_out(self) -> bool:
        """Whether the limit was passed at any look."""
        return self._ran_out

    def remove(self) -> None:
        """Nothing to release."""


def processes_bytes(proc_fd: int, *, exact: bool) -> int:
    """Private memory of all processes below a /proc directory: resident minus file pages, or (exact) proportional."""
    total = 0
    names: list[str] = []
    with suppress(OSError):  # the box has just ended
        names = [name for name in os.listdir(proc_fd) if name.isdigit()]
    for name in names:
        with suppress(OSError, ValueError, IndexError):  # the process may end while it is read
            total += _proportional_bytes(proc_fd, name) if exact else _resident_bytes(proc_fd, name)
    return total


def _resident_bytes(proc_fd: int, pid: str) -> int:
    resident, shared = _read_at(proc_fd, f"{pid}/statm").split()[1:3]
    return (int(resident) - int(shared)) * PAGE_BYTES


def _proportional_bytes(proc_fd: int, pid: str) -> int:
    try:
        lines = _read_at(proc_fd, f"{pid}/smaps_rollup").splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
    except PermissionError:  # a process that made itself undumpable
        return _resident_bytes(proc_fd, pid)


def _read_at(directory_fd: int, path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    with os.fdopen(descriptor, encoding="ascii") as file:
        return file.read()


def tmpfs_bytes(directory_fds: Sequence[int]) -> int:
    """Memory that the files of tmpfs mounts occupy, an allowance for each inode included."""
    total = 0
    for descriptor in directory_fds:
        status = os.statvfs(descriptor)
        total += (status.f_blocks - status.f_bfree) * status.f_frsize
        total += (status.f_files - status.f_ffree) * INODE_BYTES
    return total


def climb(token: str) -> MemoryControl:
    """The best rung of this node. `token` names the launcher's directory among the cgroups."""
    for control in cgroup_candidates(
        mountinfo=Path("/proc/self/mountinfo").read_text(),
        own_cgroups=Path("/proc/self/cgroup").read_text(),
        token=token,
    ):
        if _holds_processes(control):
            return control
    return RssWatchdog()


def cgroup_candidates(*, mountinfo: str, own_cgroups: str, token: str) -> list[Cgroups]:
    """Places in which a cgroup may be made, best first, from the text of /proc/self/mountinfo and /proc/self/cgroup."""
    own: dict[str, str] = {}
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found: list[Cgroups] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount_point, (kind, _, options) = left.split()[4], right.split()[:3]
        if kind == "cgroup2":
            here = Path(mount_point + own.get("", "/").rstrip("/"))
            # A cgroup with processes of its own may not have children with controllers, so the one above is tried too.
            for place in (here, here.parent) if here != Path(mount_point) else (here,):
                found.append(Cgroups(means="cgroup v2", directory=place / f"ptctl-{token}", version=2))
        elif kind == "cgroup" and "memory" in options.split(","):
            place = Path(mount_point + own.get("memory", "/").rstrip("/"))
            found.append(Cgroups(means="cgroup v1", directory=place / f"ptctl-{token}", version=1))
    return sorted(found, key=lambda control: -control.version)


def _holds_processes(control: Cgroups) -> bool:
    """Try it: a cgroup with a memory limit into which a process can be moved."""
    place = control.directory.parent
    if control.version == 2 and "memory" not in _words(place / "cgroup.subtree_control"):
        return False
    process = subprocess.Popen(["/usr/bin/sleep", "10"], stdin=subprocess.DEVNULL, env={})
    limit: MemoryLimit | None = None
    try:
        handles = BoxHandles(init_pid=process.pid, proc_fd=-1, tmpfs_fds=())
        limit = control.limit("probe", SandboxLimits(), handles)
    except OSError:
        return False
    else:
        return True
    finally:
        process.kill()
        process.wait()
        if limit is not None:
            limit.remove()
        with suppress(OSError):
            control.directory.rmdir()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
