"""The default sandbox: one bubblewrap box a command, for root and for ordinary users, without a daemon.

Measured properties and their limits
- Nothing of the box outlives `run`: the pid namespace is killed and waited for. A launcher that is killed itself is
  cleaned up after by its keeper within a second or two.
- Output goes to an unlinked temporary file of at most `file_bytes`; a command that writes more gets SIGXFSZ.
- The command and bwrap's init share a uid inside the box, so hostile code can take over that init and choose the exit
  status of its own box. A test program that runs policy code must prove its verdict by other means, as the
  `python_tests` verifier does with a keyed digest.
- The kernel is shared with the host. For code that attacks kernels, use a virtual machine.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ptctl.errors import RowFailure, Unavailable
from ptctl.protocols import SandboxCommand, SandboxResult
from ptctl.sandboxes.box import Box
from ptctl.sandboxes.box_argv import Host
from ptctl.sandboxes.host import make_staging_directory, survey_host
from ptctl.sandboxes.keeper import Keeper
from ptctl.sandboxes.memory import MemoryControl, climb

USER_NAMESPACE_HINT = (
    "a box needs unprivileged user namespaces: sysctl user.max_user_namespaces > 0, "
    "kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), "
    "and a container that allows them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """What is found out once, at the first use."""

    host: Host
    memory: MemoryControl
    keeper: Keeper
    token: str


class BubblewrapSandbox:
    """Runs each command in a fresh bubblewrap box. `run` may be called from many threads at once."""

    name: ClassVar[str] = "bubblewrap"

    def __init__(self, *, memory: MemoryControl | None = None) -> None:
        """`memory` names a rung of the ladder instead of the best one that this node has."""
        self._memory = memory
        self._ready: _Ready | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def run(self, command: SandboxCommand) -> SandboxResult:
        """Run one command in a fresh box and remove the box.

        Raises RowFailure(kind="sandbox") where this box cannot be set up, and Unavailable where none can, or where
        the command asks for the network.
        """
        if command.network:
            raise Unavailable(
                "the bubblewrap sandbox grants no network",
                hint="set limits.network = false, or use a container sandbox",
            )
        if not command.argv:
            raise RowFailure("the command is empty", kind="sandbox")
        ready = self._set_up()
        return self._run_in(ready, command)

    def enforces(self) -> Mapping[str, str]:
        """What this node enforces and by what means. Raises Unavailable where no box can be started."""
        ready = self._set_up()
        return {
            "memory": ready.memory.means,
            "processes": "RLIMIT_NPROC in a user namespace of its own",
            "files": "RLIMIT_FSIZE",
            "workspace": "tmpfs of fixed size",
            "network": "none: a network namespace without interfaces",
            "wall clock": "the pid namespace is killed",
            "user": f"kernel uid {ready.host.uid}, no capabilities",
        }

    def close(self) -> None:
        """Release everything; safe to call twice. Boxes that still run are killed."""
        with self._lock:
            self._closed = True
            ready, self._ready = self._ready, None
        if ready is not None:
            ready.keeper.finish()

    def _run_in(self, ready: _Ready, command: SandboxCommand) -> SandboxResult:
        return Box(ready.host, command).run(ready.memory, f"box-{next(self._numbers)}", ready.token)

    def _set_up(self) -> _Ready:
        with self._lock:
            if self._closed:
                raise Unavailable("the sandbox was closed")
            if self._ready is None:
                self._ready = self._prepare()
            return self._ready

    def _prepare(self) -> _Ready:
        """Survey the node, start the keeper, and try one box."""
        token = secrets.token_hex(8)
        memory = self._memory or climb(token)
        staging = make_staging_directory()
        try:
            keeper = Keeper(token, [path for path in (staging, memory.directory) if path is not None])
        except OSError as error:
            staging.rmdir()
            raise Unavailable(f"the sandbox's keeper process cannot be started: {error}") from error
        try:
            ready = _Ready(host=survey_host(staging), memory=memory, keeper=keeper, token=token)
            self._try_one_box(ready)
        except BaseException:
            keeper.finish()
            raise
        return ready

    def _try_one_box(self, ready: _Ready) -> None:
        trial = SandboxCommand(argv=("cat", "in"), files={"in": b"ready\n"}, read_back=("in",))
        user = "root" if ready.host.setpriv else f"uid {ready.host.uid}"
        try:
            result = self._run_in(ready, trial)
        except RowFailure as error:
            raise Unavailable(f"no sandbox can be started by {user}: {error}", hint=USER_NAMESPACE_HINT) from error
        if result.stdout != b"ready\n" or dict(result.files) != trial.files:
            detail = result.stderr.decode("utf-8", "replace").strip()[:200]
            raise Unavailable(f"a sandbox started by {user} does not work: {detail}", hint=USER_NAMESPACE_HINT)
