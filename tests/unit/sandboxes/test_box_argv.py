from __future__ import annotations

import resource
from dataclasses import replace

from ptctl.protocols import SandboxCommand, SandboxLimits
from ptctl.sandboxes.box_argv import Host, box_argv

USER = Host(bwrap="/opt/bwrap", setpriv=None, prlimit="/usr/bin/prlimit", uid=1001, symlinks={"/bin": "usr/bin"})
ROOT = replace(USER, setpriv="/usr/bin/setpriv", uid=61000)
LIMITS = SandboxLimits(memory_bytes=1, num_processes=7, file_bytes=11, workspace_bytes=13)
COMMAND = SandboxCommand(argv=("echo", "--clearenv"), environment={"A": "b c", "TZ": "CET"}, limits=LIMITS)


def argv(host: Host, command: SandboxCommand = COMMAND) -> list[str]:
    return box_argv(host, command, token="t0", info_fd=5, block_fd=6)


def has(words: list[str], *run: str) -> bool:
    """Whether `run` stands in `words`, uninterrupted."""
    return any(tuple(words[i : i + len(run)]) == run for i in range(len(words)))


def test_root_drops_its_uid_before_bwrap() -> None:
    assert argv(ROOT)[:6] == [
        "/usr/bin/setpriv", "--reuid=61000", "--regid=61000", "--clear-groups", "--", "/opt/bwrap",
    ]  # fmt: skip
    assert argv(USER)[0] == "/opt/bwrap"
    assert argv(ROOT)[5:] == argv(USER)


def test_isolation() -> None:
    words = argv(USER)
    for flag in ("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent"):
        assert flag in words
    assert has(words, "--cap-drop", "ALL")
    assert has(words, "--uid", "1000", "--gid", "1000")
    assert has(words, "--ro-bind", "/proc/sys", "/proc/sys")
    assert has(words, "--ro-bind", "/usr", "/usr")
    assert has(words, "--symlink", "usr/bin", "/bin")
    assert has(words, "--remount-ro", "/")
    assert not {"--share-net", "--bind", "--dev-bind"} & set(words)


def test_environment_is_cleared_before_it_is_filled() -> None:
    words = argv(USER)
    assert has(words, "--setenv", "PTCTL_BOX", "t0", "--clearenv", "--setenv", "PATH")
    assert has(words, "--setenv", "PYTHONHASHSEED", "0")
    assert has(words, "--setenv", "A", "b c")
    assert has(words, "--setenv", "TZ", "CET")
    assert not has(words, "--setenv", "TZ", "UTC")


def test_sizes_and_limits() -> None:
    words = argv(USER)
    assert has(words, "--size", "13", "--tmpfs", "/box")
    assert has(words, "--size", str(64 << 20), "--tmpfs", "/tmp")
    assert has(words, "--size", str(16 << 20), "--tmpfs", "/dev/shm")
    assert words[-8:] == [
        "/usr/bin/prlimit", "--nproc=7", "--fsize=11", "--nofile=1024", "--core=0", "--", "echo", "--clearenv",
    ]  # fmt: skip


def test_hard_limits_of_the_caller_are_not_raised() -> None:
    host = replace(USER, hard_limits={resource.RLIMIT_NPROC: 5, resource.RLIMIT_NOFILE: 4096})
    assert {"--nproc=5", "--fsize=11", "--nofile=1024"} < set(argv(host))


def test_the_command_is_held_back() -> None:
    assert has(argv(USER), "--info-fd", "5", "--block-fd", "6", "--", "/usr/bin/prlimit")


def test_python_off_the_path_is_linked() -> None:
    assert "/run/bin/python3" not in argv(USER)
    host = replace(USER, python="/usr/libexec/platform-python")
    assert has(argv(host), "--symlink", "/usr/libexec/platform-python", "/run/bin/python3")
