"""One box from start to removal.

start      bwrap sets everything up and holds the command back
prepare    files into the workspace, the memory limit around the box
release    the command begins
wait       until it ends, or a limit ends it
destroy    no process of the box is left, in whatever state it was
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from typing import IO

from ptctl.errors import RowFailure
from ptctl.protocols import SandboxCommand, SandboxResult
from ptctl.sandboxes.box_argv import WORKSPACE, Host, box_argv
from ptctl.sandboxes.box_files import read_files, write_files
from ptctl.sandboxes.memory import BoxHandles, MemoryControl, MemoryLimit

SET_UP_TIMEOUT_S = 20.0
"""bwrap needs milliseconds; a node on which it takes longer than this is not usable."""
MAX_POLL_S = 3600.0
"""poll() takes no more than 24 days."""
KILL_TIMEOUT_S = 10.0
"""A killed box is gone in milliseconds unless a process of it is stuck in the kernel."""


class Box:
    """Runs one command. Everything happens in the calling thread.

    That is what makes `--die-with-parent` right: the kernel binds it to the thread that started bwrap, and this thread
    stays in `run` until the box is gone.
    """

    def __init__(self, host: Host, command: SandboxCommand) -> None:
        self._host = host
        self._command = command
        self._open = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._limit: MemoryLimit | None = None
        self._init_pid = 0
        self._init_pidfd = -1
        self._workspace_fd = -1
        self._block_fd = -1
        # Files, not pipes: a daemon that keeps a pipe open would hold the reader for ever, and RLIMIT_FSIZE bounds a
        # file for us. The box may reopen its own streams (/dev/stdout), hence the mode.
        self._stdout = self._stream(0o666)
        self._stderr = self._stream(0o666)

    def _stream(self, mode: int) -> IO[bytes]:
        file = self._open.enter_context(tempfile.TemporaryFile(prefix="ptctl-box-"))  # noqa: SIM115
        os.fchmod(file.fileno(), mode)
        return file

    def run(self, control: MemoryControl, name: str, token: str) -> SandboxResult:
        """Run the command to its end. Raises RowFailure(kind="sandbox") where the box cannot be set up."""
        try:
            self._start(token)
            self._prepare(control, name)
            started = time.monotonic()
            self._release()
            timed_out = self._wait(started + self._command.limits.wall_s)
            self._kill()  # also where the command has ended: it may have left daemons
            return self._result(timed_out, time.monotonic() - started)
        finally:
            self._destroy()

    # ── start ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, token: str) -> None:
        info_read, info_write = os.pipe()
        block_read, self._block_fd = os.pipe()
        try:
            argv = box_argv(self._host, self._command, token=token, info_fd=info_write, block_fd=block_read)
            self._process = subprocess.Popen(
                argv,
                stdin=self._stdin(),
                stdout=self._stdout,
                stderr=self._stderr,
                pass_fds=(info_write, block_read),
                env={},  # /proc/1/environ of the box shows what bwrap itself was given
                cwd="/",
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument
            os.close(info_read)
            raise RowFailure(f"cannot start the sandbox: {error}", kind="sandbox") from error
        finally:
            os.close(info_write)
            os.close(block_read)
        deadline = time.monotonic() + SET_UP_TIMEOUT_S
        with os.fdopen(info_read, "rb") as info:
            self._init_pid = self._read_init_pid(info, deadline)
        with suppress(OSError):  # a kernel before 5.3 has no pidfd
            self._init_pidfd = os.pidfd_open(self._init_pid)
        self._workspace_fd = self._open_workspace(deadline)

    def _stdin(self) -> IO[bytes] | int:
        if not self._command.stdin:
            return subprocess.DEVNULL
        file = self._stream(0o444)
        file.write(self._command.stdin)
        file.seek(0)
        return file

    def _read_init_pid(self, info: IO[bytes], deadline: float) -> int:
        """bwrap writes {"child-pid": N} and closes."""
        text = b""
        while select.select([info], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(info.fileno(), 4096)
            if not part:
                break
            text += part
        try:
            return int(json.loads(text)["child-pid"])
        except (ValueError, KeyError) as error:
            raise self._set_up_failure() from error

    def _open_workspace(self, deadline: float) -> int:
        """Wait until the box has its own root directory, and open /box below it.

        Before that, /proc/PID/root is the host's root, or bwrap's intermediate one, which has no /box.
        """
        root = f"/proc/{self._init_pid}/root"
        host_device = os.stat("/").st_dev
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError):
                if os.stat(f"{root}/").st_dev != host_device:
                    return os.open(root + WORKSPACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            time.sleep(0.0005)
        raise self._set_up_failure()

    def _set_up_failure(self) -> RowFailure:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        detail = os.pread(self._stderr.fileno(), 4096, 0).decode("utf-8", "replace").strip()
        first_line = detail.splitlines()[0] if detail else "no message"
        return RowFailure(f"bubblewrap could not set up a box: {first_line}", kind="sandbox", detail=detail or None)

    # ── prepare, release, wait ───────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, control: MemoryControl, name: str) -> None:
        root = f"/proc/{self._init_pid}/root"
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            handles = BoxHandles(
                init_pid=self._init_pid,
                proc_fd=self._keep(os.open(f"{root}/proc", flags)),
                tmpfs_fds=(self._workspace_fd, *(self._keep(os.open(root + p, flags)) for p in ("/tmp", "/dev/shm"))),
            )
            self._limit = control.limit(name, self._command.limits, handles)
        except OSError as error:
            raise RowFailure(f"cannot limit the memory of a box: {error}", kind="sandbox") from error
        write_files(self._workspace_fd, self._command.files, self._host.uid)

    def _keep(self, descriptor: int) -> int:
        self._open.callback(os.close, descriptor)
        return descriptor

    def _release(self) -> None:
        with suppress(BrokenPipeError):  # the box died; wait() tells how
            os.write(self._block_fd, b"\0")

    def _wait(self, deadline: float) -> bool:
        """Wait for the end; returns whether the wall-clock limit came first."""
        assert self._process is not None
        assert self._limit is not None
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return True
            interval_s = self._limit.interval_s
            if self._ended_within(self._process, min(left_s, interval_s or MAX_POLL_S)):
                return False
            if interval_s is not None and self._limit.exceeded():
                return False

    @staticmethod
    def _ended_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:  # no pidfd: let subprocess poll
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        try:
            return _readable(descriptor, timeout_s)
        finally:
            os.close(descriptor)

    def _result(self, timed_out: bool, duration_s: float) -> SandboxResult:
        assert self._process is not None
        assert self._limit is not None
        limits = self._command.limits
        exit_status, ended_by = split_status(self._process.returncode)
        stdout, num_dropped_stdout = _head(self._stdout, limits.output_bytes)
        stderr, num_dropped_stderr = _head(self._stderr, limits.output_bytes)
        return SandboxResult(
            exit_status=exit_status,
            signal=ended_by,
            timed_out=timed_out,
            out_of_memory=self._limit.ran_out(),
            stdout=stdout,
            stderr=stderr,
            num_dropped_bytes=num_dropped_stdout + num_dropped_stderr,
            duration_s=duration_s,
            files=read_files(
                self._workspace_fd,
                self._command.read_back,
                file_bytes=limits.file_bytes,
                total_bytes=limits.workspace_bytes,
                uid=self._host.uid,
            ),
        )

    # ── destroy ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _kill(self) -> None:
        """Kill the init of the pid namespace, hence everything in it, and wait until the last process is gone."""
        assert self._process is not None
        if self._init_pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
        elif self._init_pid and self._process.poll() is None:  # bwrap has not reaped it, so the pid is still its own
            with suppress(ProcessLookupError):
                os.kill(self._init_pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            raise RowFailure("a killed box does not end", kind="sandbox") from error
        if self._init_pidfd >= 0 and not _readable(self._init_pidfd, KILL_TIMEOUT_S):
            raise RowFailure("a process of a killed box does not end", kind="sandbox")

    def _destroy(self) -> None:
        """Release everything; safe in every state."""
        try:
            if self._process is not None:
                if not self._init_pid:
                    self._process.kill()
                self._kill()
        finally:
            for descriptor in (self._block_fd, self._init_pidfd, self._workspace_fd):
                if descriptor >= 0:
                    os.close(descriptor)
            self._open.close()
            if self._limit is not None:
                self._limit.remove()


def split_status(returncode: int) -> tuple[int | None, int | None]:
    """(exit status, signal) from the status of bwrap.

    bwrap folds a signal of the command into its own status as 128 + number, like a shell. So 129 … 192 count as
    signals; a command that ends with `exit 137` by itself cannot be told from one that was killed.
    """
    if returncode < 0:
        return None, -returncode
    if 128 < returncode <= 128 + signal.NSIG - 1:
        return None, returncode - 128
    return returncode, None


def _readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(math.ceil(timeout_s * 1000)))


def _head(file: IO[bytes], max_bytes: int) -> tuple[bytes, int]:
    """The first `max_bytes` and the number of bytes after them."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), max_bytes, 0), max(0, size - max_bytes)
