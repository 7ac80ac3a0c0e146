"""Runs hidden tests against a candidate process and reports with a keyed digest.

    python3 -s -B .ptctl/tester.py

It runs in the workspace; `.ptctl` holds payload.json, solution.py and the two other programs.

Why the policy's code cannot forge the report, although it runs in the same box under the same uid:
- It runs in another process (candidate.py) and only ever sees the arguments of calls. Tests and key exist in this
  process's memory alone: the payload is deleted before the candidate starts.
- This process is not dumpable, so nothing of the same uid may read or write its memory, trace it, or open its files.
- What the candidate returns is decoded to plain built-in values; no object, hence no `__eq__`, crosses over.
- The report carries an HMAC under the key. Killing this process, printing a false report or choosing the box's exit
  status yields no such report.
- Modules are imported from the system's directories only, never from the workspace that the candidate can write.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ptctl.verifiers.test_box import plain_data
else:
    import plain_data  # beside this file, in the box

DIRECTORY = os.path.dirname(os.path.abspath(__file__))
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
MAX_TEXT_CHARS = 1500
REPORT_PREFIX = "ptctl-report "


class CandidateGone(BaseException):
    """The candidate process ended or broke the protocol. No `except Exception` of a test may swallow it."""


class BrokenTests(BaseException):
    """The tests themselves cannot be run; not for a test to swallow either."""


class Candidate:
    """The candidate's process, callable like the function under test."""

    def __init__(self, entry_point: str, output: int) -> None:
        """Start the process; what it prints goes to the descriptor `output`."""
        self.__name__ = self.__qualname__ = entry_point
        self.num_calls = 0
        self.gone: str | None = None
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        program, source = os.path.join(DIRECTORY, "candidate.py"), os.path.join(DIRECTORY, "solution.py")
        argv = [sys.executable, "-s", "-B", "-u", program, str(request_read), str(reply_write), source, entry_point]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(request_read, reply_write),
            start_new_session=True,
        )
        os.close(request_read)
        os.close(reply_write)

    def read(self) -> dict[str, Any]:
        """One message of the candidate."""
        try:
            message: Any = plain_data.read_frame(self._replies)
            if not isinstance(message, dict):
                raise ValueError("it sent something else than a reply")
            return cast("dict[str, Any]", message)
        except EOFError:
            raise self._end(f"it ended with status {self._wait()}") from None
        except (ValueError, RecursionError) as error:
            raise self._end(f"it broke the protocol: {error}") from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the candidate compute the call. Raises what it raised, or CandidateGone."""
        if self.gone is not None:
            raise CandidateGone(self.gone)
        self.num_calls += 1
        try:
            request = {
                "args": [plain_data.encode(value) for value in args],
                "kwargs": {name: plain_data.encode(value) for name, value in kwargs.items()},
            }
        except plain_data.NotPlainError as error:
            raise BrokenTests(f"a test passes an argument that cannot be sent to the candidate: {error}") from None
        try:
            plain_data.write_frame(self._requests, request)
        except BrokenPipeError:
            raise self._end(f"it ended with status {self._wait()}") from None
        reply = self.read()
        if "error" in reply:
            raise self._raised(reply)
        try:
            for index, value in reply["changed"].items():
                replace_content(args[int(index)], plain_data.decode(value))
            return plain_data.decode(reply["result"])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
            raise self._end(f"it broke the protocol: {error}") from None

    def _raised(self, reply: dict[str, Any]) -> BaseException:
        """The exception that the candidate's code raised, as the nearest built-in class."""
        kind = getattr(builtins, str(reply["error"]), Exception)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            kind = Exception
        if not issubclass(kind, Exception):  # SystemExit, KeyboardInterrupt: it tried to leave
            return self._end(f"it raised {kind.__name__}")
        error = Exception(str(reply.get("message")))
        with contextlib.suppress(TypeError):  # UnicodeDecodeError takes five arguments
            error = kind(str(reply.get("message")))
        error.candidate_traceback = str(reply.get("traceback"))[:MAX_TEXT_CHARS]  # type: ignore[attr-defined]
        return error

    def _end(self, why: str) -> CandidateGone:
        self.gone = why
        return CandidateGone(why)

    def _wait(self) -> Any:
        try:
            return self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "unknown"

    def kill(self) -> None:
        """Kill its process group and reap it."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._wait()


def replace_content(old: Any, new: Any) -> None:
    """Make a mutable argument what the candidate made of it."""
    if type(old) is not type(new):
        raise TypeError("an argument changed its type")
    if isinstance(old, (list, bytearray)):
        old[:] = new
    elif isinstance(old, (dict, set)):
        cast("Any", old).clear()
        cast("Any", old).update(new)
    else:
        raise TypeError("an immutable argument changed")


class Progress:
    """Which assert statements of the tests were reached and passed."""

    def __init__(self) -> None:
        self.num_asserts = 0
        self.current: int | None = None
        self._passed: set[int] = set()

    def begin(self, index: int) -> None:
        """An assert statement is about to be evaluated."""
        self.current = index

    def end(self, index: int) -> None:
        """It passed."""
        self._passed.add(index)
        self.current = None

    @property
    def num_passed(self) -> int:
        """Statements that passed each time; the one that stopped the tests does not count."""
        return len(self._passed - {self.current})


class CountAsserts(ast.NodeTransformer):
    """Puts a call before and behind every assert statement."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        """assert x  →  begin(i); assert x; end(i)."""
        index = self._progress.num_asserts
        self._progress.num_asserts += 1
        lines = ast.parse(f"__ptctl_begin__({index})\n__ptctl_end__({index})").body
        return [ast.copy_location(lines[0], node), node, ast.copy_location(lines[1], node)]


def run_tests(payload: dict[str, Any], candidate: Candidate, progress: Progress) -> None:
    """Execute the prompt's own definitions and the tests, with the candidate under the entry point's name."""
    space: dict[str, Any] = {"__name__": "tests", "__ptctl_begin__": progress.begin, "__ptctl_end__": progress.end}
    if payload["prompt"]:
        with contextlib.suppress(SyntaxError):  # a prompt that is no complete program has no helpers for the tests
            exec(compile(payload["prompt"], "prompt.py", "exec"), space)
    space[payload["entry_point"]] = candidate
    try:
        tree = ast.fix_missing_locations(CountAsserts(progress).visit(ast.parse(payload["tests"], "tests.py")))
        code = compile(tree, "tests.py", "exec")
    except (SyntaxError, ValueError) as error:
        raise BrokenTests(f"the tests do not compile: {error}") from None
    exec(code, space)
    check = space.get("check")
    if callable(check):
        check(candidate)
    if not candidate.num_calls:
        raise BrokenTests("the tests never call the candidate")


def judge(payload: dict[str, Any], output: int) -> dict[str, Any]:
    """Run everything; the report."""
    progress = Progress()
    candidate = Candidate(payload["entry_point"], output)
    try:
        first = candidate.read()
        if "error" in first:
            return report("load_failed", candidate, progress, "{}: {}".format(first["error"], first.get("message")))
        run_tests(payload, candidate, progress)
        return report("passed" if candidate.gone is None else "ended", candidate, progress, candidate.gone)
    except BrokenTests as error:
        return report("broken_tests", candidate, progress, str(error))
    except CandidateGone as error:
        return report("ended", candidate, progress, str(error))
    except BaseException as error:  # noqa: BLE001 - whatever stopped the tests is what the report tells
        if not candidate.num_calls:
            return report("broken_tests", candidate, progress, traceback.format_exc(limit=-3))
        text = f"{type(error).__name__}: {error}"
        text += "\n" + getattr(error, "candidate_traceback", source_line(payload["tests"], error))
        return report("ended" if candidate.gone else "failed", candidate, progress, text)
    finally:
        candidate.kill()


def source_line(tests: str, error: BaseException) -> str:
    """The line of the tests at which they stopped."""
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "tests.py"]
    return tests.splitlines()[numbers[-1] - 1].strip() if numbers and numbers[-1] else ""


def report(status: str, candidate: Candidate, progress: Progress, text: str | None) -> dict[str, Any]:
    """What `python_tests` reads."""
    return {
        "status": status,
        "num_calls": candidate.num_calls,
        "num_asserts": progress.num_asserts,
        "num_asserts_passed": progress.num_passed,
        "message": (text or "")[:MAX_TEXT_CHARS],
    }


def seal(key: bytes, result: dict[str, Any]) -> str:
    """The report's line: prefix, digest, JSON."""
    content = json.dumps(result, sort_keys=True)
    return REPORT_PREFIX + hmac.new(key, content.encode("ascii"), hashlib.sha256).hexdigest() + " " + content + "\n"


def become_undumpable() -> bool:
    """Close this process's memory and descriptors to others of the same uid."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 and libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


def main() -> None:
    """Take the payload, close the doors, judge, report."""
    isolated = become_undumpable()
    path = os.path.join(DIRECTORY, "payload.json")
    with open(path, encoding="utf-8") as file:
        payload = json.load(file)
    os.unlink(path)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the candidate's kill must not become an exception inside a test
    workspace = os.path.realpath(os.getcwd())
    sys.path[:] = [path for path in sys.path if not (os.path.realpath(path) + "/").startswith(workspace + "/")]
    key = bytes.fromhex(payload.pop("key"))
    report_to, output = os.dup(1), os.dup(2)
    # The candidate holds the box's standard error and could read there what the tests print.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    random.seed(0)
    result = judge(payload, output) if isolated else {"status": "not_isolated"}
    os.write(report_to, seal(key, result).encode("ascii"))


if __name__ == "__main__":
    main()
