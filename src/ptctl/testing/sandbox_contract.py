# ruff: noqa: D102 -- the name of a test says what it checks
"""What every sandbox must withstand, as a test class that the author of a sandbox subclasses.

    class TestMine(SandboxContract):
        factory = "my_package.sandbox:MySandbox"

The payloads are hostile on purpose; run them where a failing sandbox may harm nothing that matters.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ptctl.errors import RowFailure
from ptctl.protocols import Sandbox, SandboxCommand, SandboxLimits, SandboxResult

MIB = 1024 * 1024
SMALL = SandboxLimits(
    wall_s=10.0,
    memory_bytes=96 * MIB,
    num_processes=32,
    file_bytes=4 * MIB,
    workspace_bytes=16 * MIB,
    output_bytes=4096,
)
"""Limits that are reached within a second."""


def python(program: str, *arguments: str, **columns: Any) -> SandboxCommand:
    """A command that runs a Python program under the small limits."""
    columns.setdefault("limits", SMALL)
    return SandboxCommand(argv=("python3", "-c", textwrap.dedent(program), *arguments), **columns)


def shell(script: str, **columns: Any) -> SandboxCommand:
    """A command that runs a shell script under the small limits."""
    columns.setdefault("limits", SMALL)
    return SandboxCommand(argv=("sh", "-c", script), **columns)


def processes_with(text: str) -> list[int]:
    """Pids of this machine whose command line holds `text`, other than this process and its test runner."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command_line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command_line:
                found.append(int(entry.name))
    return found


def wait_until(condition: Any, timeout_s: float = 10.0) -> bool:
    """Whether `condition()` becomes true within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


LAUNCHER = """
import sys, threading
from importlib import import_module
from ptctl.protocols import SandboxCommand
module, name = sys.argv[1].split(":")
sandbox = getattr(import_module(module), name)()
script = "(setsid sleep " + sys.argv[2] + " &) ; sleep " + sys.argv[2]
for _ in range(int(sys.argv[3])):
    threading.Thread(target=sandbox.run, args=(SandboxCommand(argv=("sh", "-c", script)),)).start()
"""
"""Starts boxes that hold two sleeping processes each, one of them a daemon."""


class SandboxContract:
    """Subclass with `factory` set; override `make_sandbox` for constructor arguments."""

    factory: ClassVar[str]
    """`module:callable` that makes the sandbox without arguments, also in another process."""

    @classmethod
    def make_sandbox(cls) -> Sandbox:
        """The sandbox under test."""
        module, name = cls.factory.split(":")
        return getattr(import_module(module), name)()

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[Sandbox]:
        """One sandbox for all tests of the class, closed behind the last."""
        sandbox = cls.make_sandbox()
        yield sandbox
        sandbox.close()

    # ── what a command gets and gives ────────────────────────────────────────────────────────────────────────────────

    def test_streams_files_and_exit_status(self, sandbox: Sandbox) -> None:
        command = shell(
            'cat; cat d/in; printf "$WORD" >&2; printf out > d/out; pwd; exit 7',
            stdin=b"stdin ",
            files={"d/in": b"\x00\xff file\n"},
            environment={"WORD": "err"},
            read_back=("d/out", "d/in", "absent"),
        )
        result = sandbox.run(command)
        assert (result.exit_status, result.signal) == (7, None)
        assert (result.timed_out, result.out_of_memory, result.num_dropped_bytes) == (False, False, 0)
        assert result.stdout.startswith(b"stdin \x00\xff file\n/")
        assert result.stderr == b"err"
        assert dict(result.files) == {"d/out": b"out", "d/in": b"\x00\xff file\n"}

    def test_status_is_from_wait_and_not_from_the_output(self, sandbox: Sandbox) -> None:
        result = sandbox.run(shell("echo EXIT_CODE:0; echo 'exit status 0'; exit 1"))
        assert result.exit_status == 1

    def test_signal_is_reported(self, sandbox: Sandbox) -> None:
        result = sandbox.run(shell("kill -SEGV $$"))
        assert (result.exit_status, result.signal) == (None, signal.SIGSEGV)

    def test_missing_program(self, sandbox: Sandbox) -> None:
        result = sandbox.run(SandboxCommand(argv=("no-such-program-at-all",)))
        assert result.exit_status not in (0, None)

    def test_boxes_are_fresh(self, sandbox: Sandbox) -> None:
        sandbox.run(shell("echo left > here; echo left > /tmp/here"))
        assert sandbox.run(shell("cat here /tmp/here")).stdout == b""

    def test_boxes_are_deterministic(self, sandbox: Sandbox) -> None:
        program = "import os, socket, time; print(os.getuid(), socket.gethostname(), time.tzname, hash('text'))"
        assert sandbox.run(python(program)).stdout == sandbox.run(python(program)).stdout

    def test_many_threads(self, sandbox: Sandbox) -> None:
        def run(number: int) -> SandboxResult:
            return sandbox.run(shell(f"cat > out; echo {number}", stdin=b"%d" % number, read_back=("out",)))

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(run, range(16)))
        assert [result.stdout for result in results] == [b"%d\n" % n for n in range(16)]
        assert [result.files["out"] for result in results] == [b"%d" % n for n in range(16)]

    @pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a//b", "nul\0"])
    def test_paths_that_leave_the_workspace_are_refused(self, sandbox: Sandbox, path: str) -> None:
        with pytest.raises(RowFailure) as caught:
            sandbox.run(shell("true", files={path: b""}))
        assert caught.value.kind == "sandbox"
        with pytest.raises(RowFailure):
            sandbox.run(shell("true", read_back=(path,)))

    def test_files_that_do_not_fit_are_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(RowFailure) as caught:
            sandbox.run(shell("true", files={"large": bytes(17 * MIB)}))
        assert caught.value.kind == "sandbox"

    def test_close_twice(self) -> None:
        sandbox = self.make_sandbox()
        assert "memory" in sandbox.enforces()
        sandbox.close()
        sandbox.close()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_wall_clock_kills_the_tree(self, sandbox: Sandbox) -> None:
        limits = SandboxLimits(wall_s=0.3)
        result = sandbox.run(shell("echo begun; sleep 86411 & setsid sleep 86411 & sleep 86411", limits=limits))
        assert result.timed_out
        assert result.exit_status is None
        assert result.stdout == b"begun\n"
        assert processes_with("sleep\x0086411") == []

    def test_daemon_does_not_outlive_the_command(self, sandbox: Sandbox) -> None:
        # The daemon keeps stdout open: whoever waits for the end of a pipe hangs here.
        result = sandbox.run(shell("(setsid sleep 86412 &) ; echo done"))
        assert (result.exit_status, result.timed_out, result.stdout) == (0, False, b"done\n")
        assert processes_with("sleep\x0086412") == []

    def test_endless_output_is_cut(self, sandbox: Sandbox) -> None:
        result = sandbox.run(shell("exec yes"))
        assert result.exit_status != 0
        assert result.stdout == b"y\n" * 2048
        assert 0 < result.num_dropped_bytes <= 10_000 * MIB

    def test_fork_bomb(self, sandbox: Sandbox) -> None:
        program = """
            import os, time
            n = 0
            try:
                while n < 500:
                    if os.fork() == 0:
                        time.sleep(60)
                    n += 1
            except OSError:
                print(n)
        """
        result = sandbox.run(python(program))
        assert result.exit_status == 0
        assert 5 <= int(result.stdout) < SMALL.num_processes

    def test_fork_bomb_that_never_ends(self, sandbox: Sandbox) -> None:
        limits = SandboxLimits(wall_s=1.0, num_processes=32, memory_bytes=96 * MIB)
        result = sandbox.run(shell("f() { f | f & f; }; exec 2>/dev/null; f; sleep 86413", limits=limits))
        assert result.exit_status != 0
        assert processes_with("86413") == []

    def test_one_process_that_takes_all_memory(self, sandbox: Sandbox) -> None:
        program = """
            import time
            held = []
            for _ in range(400):
                held.append(bytearray(b"x") * (8 << 20))
            print("took all")
        """
        result = sandbox.run(python(program))
        assert result.out_of_memory
        assert not result.timed_out
        assert b"took all" not in result.stdout

    def test_many_processes_that_take_all_memory(self, sandbox: Sandbox) -> None:
        # None of them passes the limit alone.
        program = """
            import os, time
            for _ in range(12):
                if os.fork() == 0:
                    held = bytearray(b"x") * (24 << 20)
                    time.sleep(60)
            os.wait()  # until a child is killed, or all are
        """
        assert sandbox.run(python(program)).out_of_memory

    def test_memory_within_the_limit_is_left_alone(self, sandbox: Sandbox) -> None:
        result = sandbox.run(python("held = bytearray(b'x') * (40 << 20); print(len(held))"))
        assert (result.exit_status, result.out_of_memory) == (0, False)

    @pytest.mark.parametrize("place", [".", "/tmp", "/dev/shm"])
    def test_disk_filler(self, sandbox: Sandbox, place: str) -> None:
        program = """
            import os, sys
            total = 0
            try:
                for number in range(100):
                    with open(f"{sys.argv[1]}/{number}", "wb", 0) as file:
                        for _ in range(4):
                            total += file.write(bytes(1 << 20))
            except OSError as error:
                print(total >> 20, error.errno)
        """
        limits = SandboxLimits(wall_s=10, file_bytes=4 * MIB, workspace_bytes=16 * MIB, memory_bytes=512 * MIB)
        result = sandbox.run(python(program, place, limits=limits))
        size, error = result.stdout.split()
        assert error == b"28"  # ENOSPC
        assert int(size) <= (16 if place == "." else 128)

    def test_one_large_file(self, sandbox: Sandbox) -> None:
        program = """
            file = open("large", "wb", 0)
            try:
                for _ in range(8):
                    file.write(bytes(1 << 20))
            except OSError as error:
                print(error.errno)
        """
        result = sandbox.run(python(program))
        assert result.stdout == b"27\n"  # EFBIG

    # ── isolation ────────────────────────────────────────────────────────────────────────────────────────────────────

    def test_no_privileges(self, sandbox: Sandbox) -> None:
        result = sandbox.run(shell("id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status"))
        assert result.stdout.split()[0] != b"0"
        assert result.stdout.count(b"0000000000000000") == 2
        assert b"NoNewPrivs:\t1" in result.stdout
        assert sandbox.run(shell("unshare --user --map-root-user id -u")).exit_status != 0

    def test_host_files_are_out_of_sight(self, sandbox: Sandbox, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("host-secret")
        secret.chmod(0o644)
        paths = ["/etc/shadow", "/etc/passwd", str(Path.home() / ".ssh"), str(secret), "/proc/1/root" + str(secret)]
        program = """
            import os, sys
            for path in sys.argv[1:]:
                try:
                    print("seen", path, os.listdir(path) if os.path.isdir(path) else open(path).read()[:80])
                except OSError:
                    pass
        """
        assert sandbox.run(python(program, *paths)).stdout == b""

    def test_host_environment_is_out_of_sight(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PTCTL_CONTRACT_SECRET", "in-the-environment")
        fresh = self.make_sandbox()  # made with the variable set
        try:
            result = fresh.run(shell("env; cat /proc/*/environ"))
        finally:
            fresh.close()
        assert b"PATH=" in result.stdout
        assert b"in-the-environment" not in result.stdout

    def test_host_network_is_out_of_reach(self, sandbox: Sandbox) -> None:
        program = """
            import socket, sys
            addresses = {socket.AF_INET: ("127.0.0.1", int(sys.argv[1])), socket.AF_UNIX: "\\0" + sys.argv[2]}
            for family, address in addresses.items():
                client = socket.socket(family)
                client.settimeout(2)
                try:
                    client.connect(address)
                    print("connected", address)
                except OSError:
                    pass
        """
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(f"\0ptctl-contract-{os.getpid()}")
            abstract.listen()
            result = sandbox.run(python(program, str(server.getsockname()[1]), f"ptctl-contract-{os.getpid()}"))
        assert (result.exit_status, result.stdout) == (0, b"")

    def test_host_processes_are_out_of_reach(self, sandbox: Sandbox) -> None:
        with subprocess.Popen(["sleep", "60"]) as victim:
            program = """
                import os, signal, sys
                for pid in (int(sys.argv[1]), int(sys.argv[2])):
                    try:
                        os.kill(pid, signal.SIGKILL)
                        print("killed", pid)
                    except OSError:
                        pass
                print(len([name for name in os.listdir("/proc") if name.isdigit()]) < 8)
            """
            result = sandbox.run(python(program, str(victim.pid), str(os.getpid())))
            sandbox.run(shell("kill -9 -1"))
            assert victim.poll() is None
            victim.kill()
        assert result.stdout == b"True\n"

    def test_host_files_are_not_written(self, sandbox: Sandbox) -> None:
        name = f"ptctl-contract-{os.getpid()}"
        pattern = Path("/proc/sys/kernel/core_pattern").read_text()
        script = f"""
            for path in /tmp/{name} /usr/{name} /usr/bin/{name} /etc/{name} /{name} /proc/sys/kernel/core_pattern; do
                echo '|{name}' > $path
            done
        """
        sandbox.run(shell(script))
        assert [d for d in ("/tmp", "/usr", "/usr/bin", "/etc", "/") if Path(d, name).exists()] == []
        assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern

    def test_hostile_files_are_not_read_back(self, sandbox: Sandbox) -> None:
        program = """
            import os
            os.symlink("/etc/passwd", "link")
            os.symlink("/etc", "directory_link")
            os.symlink("plain", "inner_link")
            os.mkfifo("fifo")
            os.mkdir("directory")
            open("plain", "w").write("plain")
            open("locked", "w").write("locked"); os.chmod("locked", 0)
            try:
                open("sparse", "wb").truncate(1 << 40)
            except OSError:
                pass
        """
        paths = ("link", "directory_link/passwd", "inner_link", "fifo", "directory", "sparse", "locked", "plain")
        result = sandbox.run(python(program, read_back=paths))
        assert result.exit_status == 0
        assert result.files.get("sparse", b"") == b""
        assert {path: text for path, text in result.files.items() if path != "sparse"} == {"plain": b"plain"}

    def test_killed_launcher_leaves_no_process(self) -> None:
        mark = f"8642{os.getpid()}"
        argv = [sys.executable, "-c", LAUNCHER, self.factory, mark, "6"]
        with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as launcher:
            begun = wait_until(lambda: len(processes_with(f"sleep\0{mark}")) >= 12)
            launcher.kill()
        assert begun
        assert wait_until(lambda: processes_with(mark) == [])
