"""`python_tests`: the answer's code passes hidden tests, in the manner of HumanEval, in a fresh sandbox.

What a pass proves. The tests run in a process that the policy's code can neither read nor write (see
`test_box/tester.py`), and their report carries a keyed digest, which is checked here together with the exit status
from wait(). So a pass means that the code answered every call as the tests demand, or that it broke the kernel.

What remains. The code sees the arguments of calls: it may have learned their answers by heart, or recognise that it is
being tested. Tests see plain data only (see `plain_data.py`): a function that takes or returns objects, generators or
functions, and tests that import or read files of the workspace, need another verifier. Calls are by value, except that
changes to list, dict, set and bytearray arguments are carried back.

Who is to blame. Code that never ends, takes all memory, kills its tester or spoils the report has failed: reward 0.
Since that looks like a broken sandbox or broken tests, a control run with a stub decides: the same tests in a fresh
box, and only where that gives no verdict either is RowFailure raised.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from ptctl.errors import RowFailure
from ptctl.protocols import Sandbox, SandboxCommand, SandboxLimits, SandboxResult, Verdict
from ptctl.records import Component, Task, Trajectory
from ptctl.registry import did_you_mean
from ptctl.verifiers.answer_code import assemble, extract_code
from ptctl.verifiers.settings import Settings, decode_target

PROGRAMS = ("tester.py", "candidate.py", "plain_data.py")
DIRECTORY = ".ptctl"
"""Where the programs stand in the workspace, apart from the task's own files."""
REPORT_PREFIX = b"ptctl-report "
TARGET_KEYS = ("prompt", "test", "test_file", "entry_point")
MAX_EVIDENCE_CHARS = 2000
MAX_ANSWER_CHARS = 4000
NUM_PROCESSES = 64
DEFAULT_MEMORY_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The decoded target of a task."""

    entry_point: str
    """Function that the tests call."""
    tests: str
    """Source that asserts, at its top level or in a function `check(candidate)`."""
    prompt: str
    """Source that the policy was given; it stands before its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one box said: the sandbox's result, and the tester's report where a genuine one was found."""

    result: SandboxResult
    report: Mapping[str, Any] | None

    @property
    def is_verdict(self) -> bool:
        """The tests ran to a pass or a failure of the candidate."""
        return self.report is not None and self.report["status"] in ("passed", "failed", "load_failed", "ended")


class PythonTestsVerifier:
    """Reward 1 where every test passes, else 0.

    The target is {"entry_point": name, "test": source | "test_file": path of a hidden file, "prompt": source}. The
    verifier has no settings; the task's limits (`verify_timeout_s`, `memory_bytes`) bound the run.
    """

    name: ClassVar[str] = "python_tests"
    version: ClassVar[str] = "1"
    needs_sandbox: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises UsageError for any setting."""
        Settings(self.name, config, ())
        directory = Path(__file__).with_name("test_box")
        self._programs = {f"{DIRECTORY}/{name}": (directory / name).read_bytes() for name in PROGRAMS}

    def verify(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Verdict:
        """Run the tests.

        Raises RowFailure: "verifier" for a task whose target or tests are unusable, "sandbox" or "timeout" where the
        control run fails too.
        """
        if sandbox is None:
            raise RowFailure("python_tests needs a sandbox", kind="sandbox")
        target = read_target(task)
        answer = trajectory.final_answer
        if answer is None or not answer.strip():
            return Verdict(reward=0.0, passed=False, answer_status="no_answer", evidence={"status": "no_answer"})
        code = extract_code(answer, target.entry_point)
        outcome = self._run(task, target, assemble(target.prompt, code, target.entry_point), sandbox)
        if not outcome.is_verdict:
            self._control(task, target, sandbox)
        return verdict(code, outcome)

    def _control(self, task: Task, target: Target, sandbox: Sandbox) -> None:
        """Raise RowFailure where the tests give no verdict on a harmless stub either."""
        stub = f"def {target.entry_point}(*args, **kwargs):\n    raise NotImplementedError\n"
        outcome = self._run(task, target, stub, sandbox)
        if outcome.is_verdict:
            return
        stderr = _text(outcome.result.stderr)
        if outcome.report is None:
            kind = "timeout" if outcome.result.timed_out else "sandbox"
            raise RowFailure(f"task {task.task_id!r}: no verdict from the sandbox", kind=kind, detail=stderr or None)
        kind = "verifier" if outcome.report["status"] == "broken_tests" else "sandbox"
        message = outcome.report.get("message") or outcome.report["status"]
        raise RowFailure(f"task {task.task_id!r}: the tests cannot run: {message}", kind=kind, detail=stderr or None)

    def _run(self, task: Task, target: Target, source: str, sandbox: Sandbox) -> Outcome:
        key = secrets.token_bytes(32)
        payload = {"key": key.hex(), "prompt": target.prompt, "tests": target.tests, "entry_point": target.entry_point}
        files = {file.path: file.content for file in task.files if not file.hidden}
        files |= self._programs
        files[f"{DIRECTORY}/payload.json"] = json.dumps(payload).encode("ascii")
        files[f"{DIRECTORY}/solution.py"] = source.encode("utf-8", "replace")
        command = SandboxCommand(
            # -s and not -I: the latter would ignore the fixed PYTHONHASHSEED of the box.
            argv=("python3", "-s", "-B", f"{DIRECTORY}/tester.py"),
            files=files,
            limits=SandboxLimits(
                wall_s=task.limits.verify_timeout_s,
                memory_bytes=task.limits.memory_bytes or DEFAULT_MEMORY_BYTES,
                num_processes=NUM_PROCESSES,
            ),
        )
        result = sandbox.run(command)
        return Outcome(result=result, report=open_report(result, key))


def read_target(task: Task) -> Target:
    """Decode the target. Raises RowFailure(kind="verifier") naming the task and what is wrong."""
    what = f"task {task.task_id!r}: the target of `python_tests`"
    value = decode_target(task)
    if not isinstance(value, dict):
        raise RowFailure(f"{what} is no JSON object", kind="verifier")
    target = cast("dict[str, Any]", value)
    for key, content in target.items():
        if key not in TARGET_KEYS:
            hint = did_you_mean(key, list(TARGET_KEYS))
            raise RowFailure(f"{what} has an unknown key {key!r}", kind="verifier", hint=hint)
        if not isinstance(content, str):
            raise RowFailure(f"{what}: {key} is no string", kind="verifier")
    if not target.get("entry_point", "").isidentifier():
        raise RowFailure(f"{what}: entry_point must be the name of a function", kind="verifier")
    if ("test" in target) == ("test_file" in target):
        raise RowFailure(f"{what} needs either test or test_file", kind="verifier")
    tests = target["test"] if "test" in target else _hidden_file(task, target["test_file"], what)
    return Target(entry_point=target["entry_point"], tests=tests, prompt=target.get("prompt", ""))


def _hidden_file(task: Task, path: str, what: str) -> str:
    for file in task.files:
        if file.path == path and file.hidden:
            return file.content.decode("utf-8", "replace")
    raise RowFailure(f"{what}: the task has no hidden file {path!r}", kind="verifier")


def open_report(result: SandboxResult, key: bytes) -> Mapping[str, Any] | None:
    """The tester's report in standard output, where it bears the right digest and the exit status is 0."""
    if result.exit_status != 0:
        return None
    for line in result.stdout.replace(b"\0", b"").splitlines():
        digest, _, content = line.removeprefix(REPORT_PREFIX).partition(b" ")
        expected = hmac.new(key, content, hashlib.sha256).hexdigest().encode("ascii")
        if line.startswith(REPORT_PREFIX) and hmac.compare_digest(digest, expected):
            return json.loads(content)
    return None


def verdict(code: str, outcome: Outcome) -> Verdict:
    """Turn an outcome into a verdict; one without a report is the candidate's failure."""
    result, report = outcome.result, outcome.report or {"status": "no_report"}
    passed = report["status"] == "passed"
    components = [Component(name="tests", value=float(passed), passed=passed)]
    num_asserts = report.get("num_asserts", 0)
    if num_asserts:
        # Informative: distinct assert statements that passed before the first that did not.
        share = report["num_asserts_passed"] / num_asserts
        components.append(Component(name="asserts", value=share, weight=0.0))
    evidence = {
        **report,
        "exit_status": result.exit_status,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "out_of_memory": result.out_of_memory,
        "output": _text(result.stderr),
    }
    return Verdict(
        reward=float(passed),
        passed=passed,
        components=tuple(components),
        answer=code[:MAX_ANSWER_CHARS],
        answer_status="ok",
        evidence=evidence,
    )


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").replace("\0", "\ufffd")[:MAX_EVIDENCE_CHARS]
