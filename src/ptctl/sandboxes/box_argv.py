"""The argument vector of a bubblewrap box: a pure function of the host and of the command.

What the box gets: the host's /usr read-only, an own /proc and /dev, and three size-limited tmpfs mounts (/box, /tmp,
/dev/shm). It gets no network, no /etc, no /home, and nothing of the caller's environment.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field

from ptctl.protocols import SandboxCommand, SandboxLimits

WORKSPACE = "/box"
"""The box's working directory, a tmpfs of `workspace_bytes`."""
TMP_BYTES = 64 * 1024 * 1024
"""Size of /tmp."""
SHM_BYTES = 16 * 1024 * 1024
"""Size of /dev/shm."""
NUM_OPEN_FILES = 1024
"""RLIMIT_NOFILE inside."""
BOX_ID = 1000
"""uid and gid that the box sees."""
MARKER = "PTCTL_BOX"
"""Variable that marks the boxes of one launcher on bwrap's command line (never inside the box)."""

ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin:/usr/local/bin:/run/bin",
    "HOME": WORKSPACE,
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}
"""All that a command finds in its environment, besides what `SandboxCommand.environment` adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What of this node decides the argument vector."""

    bwrap: str
    """Path of the bubblewrap program, executable for `uid`."""
    setpriv: str | None
    """Path of setpriv where the caller is root and must drop to `uid` first; None for an ordinary user."""
    prlimit: str
    """Path of prlimit as the box sees it."""
    uid: int
    """Kernel uid (and gid) of everything in the box; never 0, because kernel uid 0 escapes."""
    symlinks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Top-level links of a merged /usr: {"/bin": "usr/bin"}."""
    read_only: tuple[str, ...] = ("/usr",)
    """Host paths that are bound read-only at the same place."""
    python: str | None = None
    """A Python under /usr that is not on the box's PATH as `python3`; it is linked to /run/bin/python3."""
    hard_limits: Mapping[int, int] = field(default_factory=dict[int, int])
    """The caller's hard limits by RLIMIT number, where finite: prlimit may lower them but not raise them."""

    def within(self, limit: int, wanted: int) -> int:
        """`wanted`, or the caller's hard limit where that is lower."""
        return min(wanted, self.hard_limits.get(limit, wanted))


def box_argv(host: Host, command: SandboxCommand, *, token: str, info_fd: int, block_fd: int) -> list[str]:
    """argv that runs `command` in a box.

    bwrap writes the pid of the box's init to `info_fd`, and holds the command back, with everything set up, until
    `block_fd` can be read. `token` names the launcher, for the keeper.
    """
    argv = _as_ordinary_user(host)
    argv += [host.bwrap, *_ISOLATION]
    # Before --clearenv, so that it stands on the command line and not in the environment of the box.
    argv += ["--setenv", MARKER, token, "--clearenv"]
    for name, value in {**ENVIRONMENT, **command.environment}.items():
        argv += ["--setenv", name, value]
    argv += _file_system(host, command.limits)
    argv += ["--info-fd", str(info_fd), "--block-fd", str(block_fd), "--"]
    argv += [host.prlimit, *_resource_limits(host, command.limits), "--", *command.argv]
    return argv


_ISOLATION = (
    "--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(BOX_ID), "--gid", str(BOX_ID),
    "--hostname", "sandbox", "--cap-drop", "ALL", "--new-session", "--die-with-parent",
)  # fmt: skip


def _as_ordinary_user(host: Host) -> list[str]:
    if host.setpriv is None:
        return []
    return [host.setpriv, f"--reuid={host.uid}", f"--regid={host.uid}", "--clear-groups", "--"]


def _file_system(host: Host, limits: SandboxLimits) -> list[str]:
    argv: list[str] = []
    for path in host.read_only:
        argv += ["--ro-bind", path, path]
    for path, target in host.symlinks.items():
        argv += ["--symlink", target, path]
    if host.python is not None:
        argv += ["--symlink", host.python, "/run/bin/python3"]
    argv += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    for path, size_bytes in (("/tmp", TMP_BYTES), ("/dev/shm", SHM_BYTES), (WORKSPACE, limits.workspace_bytes)):
        argv += ["--size", str(size_bytes), "--tmpfs", path]
    return [*argv, "--chdir", WORKSPACE, "--remount-ro", "/"]


def _resource_limits(host: Host, limits: SandboxLimits) -> list[str]:
    # No RLIMIT_AS: it counts each process alone (twenty processes of 500 MB pass) and breaks V8, the JVM and Go.
    return [
        f"--nproc={host.within(resource.RLIMIT_NPROC, limits.num_processes)}",
        f"--fsize={host.within(resource.RLIMIT_FSIZE, limits.file_bytes)}",
        f"--nofile={host.within(resource.RLIMIT_NOFILE, NUM_OPEN_FILES)}",
        "--core=0",
    ]
