"""`python_tests` in real boxes: rows of HumanEval, and candidates that try to be paid without solving anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ptctl.errors import MissingExtra, RowFailure, UsageError
from ptctl.protocols import SandboxCommand, SandboxResult, Verdict
from ptctl.records import Limits, Task, TaskFile, canonical_json, make_task
from ptctl.sandboxes.bubblewrap import BubblewrapSandbox
from ptctl.sandboxes.host import find_bwrap
from ptctl.testing.factories import make_draw, make_trajectory
from ptctl.verifiers.python_tests import PythonTestsVerifier
from public_data import human_eval_rows, needs_public_data

try:
    find_bwrap()
except MissingExtra:  # no wheel for this platform and no package of the distribution
    pytest.skip("bubblewrap is not installed", allow_module_level=True)

pytestmark = pytest.mark.sandbox
# Rows of HumanEval where they are at hand, and always rows of our own in the same form.
OWN_ROWS = [
    {
        "task_id": "own/count_vowels",
        "prompt": 'def count_vowels(text: str) -> int:\n    """Number of vowels in text."""\n',
        "entry_point": "count_vowels",
        "canonical_solution": "    return sum(letter in 'aeiou' for letter in text.lower())\n",
        "test": "def check(candidate):\n    assert candidate('Education') == 5\n    assert candidate('') == 0\n",
    },
    {
        "task_id": "own/running_max",
        "prompt": "from typing import List\n\n\ndef running_max(numbers: List[int]) -> List[int]:\n",
        "entry_point": "running_max",
        "canonical_solution": "    return [max(numbers[: i + 1]) for i in range(len(numbers))]\n",
        "test": "def check(candidate):\n    assert candidate([1, 3, 2]) == [1, 3, 3]\n    assert candidate([]) == []\n",
    },
]
ROWS = [*OWN_ROWS, *human_eval_rows()[:30]]

ADD_TESTS = """
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(-1, 1) == 0
    import copy  # a hostile workspace may hold a copy.py
    assert copy.copy(candidate(10, 5)) == 15
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[BubblewrapSandbox]:
    sandbox = BubblewrapSandbox()
    yield sandbox
    sandbox.close()


def make_code_task(target: Mapping[str, Any], *, timeout_s: float = 20.0, **columns: Any) -> Task:
    limits = Limits(verify_timeout_s=timeout_s, memory_bytes=128 << 20)
    return make_task(
        task_id="code/0", domain="code", family="code", split="eval", prompt=(), verifier="python_tests",
        target_json=canonical_json(target), limits=limits, **columns,
    )  # fmt: skip


def judge(task: Task, answer: str | None, sandbox: Any) -> Verdict:
    return PythonTestsVerifier({}).verify(task, make_trajectory(make_draw(task), final_answer=answer), sandbox)


def humaneval(row: Mapping[str, str]) -> Task:
    return make_code_task({key: row[key] for key in ("prompt", "test", "entry_point")})


def add_task(tests: str = ADD_TESTS, **columns: Any) -> Task:
    return make_code_task({"entry_point": "add", "test": tests}, **columns)


# ── HumanEval ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["task_id"])
def test_humaneval_row(row: Mapping[str, str], sandbox: BubblewrapSandbox) -> None:
    task = humaneval(row)
    verdict = judge(task, row["canonical_solution"], sandbox)
    assert (verdict.reward, verdict.passed) == (1.0, True)
    assert verdict.evidence["exit_status"] == 0
    assert verdict.evidence["num_asserts_passed"] == verdict.evidence["num_asserts"] > 0
    assert judge(task, "    return None\n", sandbox).reward == 0.0
    assert judge(task, "    return None\n", sandbox).passed is False


def test_whole_function_in_a_chat_answer(sandbox: BubblewrapSandbox) -> None:
    row = ROWS[0]
    answer = f"Sure, this works:\n\n```python\n{row['prompt']}{row['canonical_solution']}```\nIt is quadratic."
    assert judge(humaneval(row), answer, sandbox).reward == 1.0


def test_partly_right_is_not_a_pass(sandbox: BubblewrapSandbox) -> None:
    verdict = judge(add_task(), "def add(a, b):\n    print('called')\n    return 3", sandbox)
    assert (verdict.reward, verdict.passed, verdict.evidence["status"]) == (0.0, False, "failed")
    assert (verdict.evidence["num_asserts_passed"], verdict.evidence["num_asserts"]) == (1, 3)
    assert [(c.name, c.value, c.weight) for c in verdict.components] == [("tests", 0.0, 1.0), ("asserts", 1 / 3, 0.0)]
    assert "assert candidate(-1, 1) == 0" in verdict.evidence["message"]
    assert verdict.evidence["output"] == "called\ncalled\n"


@pytest.mark.parametrize("answer", [None, "", "  \n"])
def test_no_answer(answer: str | None, sandbox: BubblewrapSandbox) -> None:
    verdict = judge(add_task(), answer, sandbox)
    assert (verdict.reward, verdict.passed, verdict.answer_status) == (0.0, False, "no_answer")


def test_code_that_does_not_load(sandbox: BubblewrapSandbox) -> None:
    verdict = judge(add_task(), "I do not know.", sandbox)
    assert (verdict.reward, verdict.evidence["status"]) == (0.0, "load_failed")
    assert "SyntaxError" in verdict.evidence["message"]
    assert judge(add_task(), "def sub(a, b): return 0", sandbox).evidence["status"] == "load_failed"


def test_verdicts_are_deterministic(sandbox: BubblewrapSandbox) -> None:
    code = "import random\ndef add(a, b):\n    print(random.random(), {'x', 'y', 'z'})\n    return a"
    assert judge(add_task(), code, sandbox) == judge(add_task(), code, sandbox)


# ── what tests may do ────────────────────────────────────────────────────────────────────────────────────────────────


def test_tests_at_the_top_level(sandbox: BubblewrapSandbox) -> None:
    task = add_task("assert add(1, b=2) == 3\nassert add('a', 'b') == 'ab'\n")
    assert judge(task, "add = lambda a, b: a + b", sandbox).reward == 1.0


def test_helpers_of_the_prompt(sandbox: BubblewrapSandbox) -> None:
    prompt = "def encode(s):\n    return s[::-1]\n\n\ndef decode(s):\n    '''Undo it.'''\n"
    tests = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"
    task = make_code_task({"prompt": prompt, "entry_point": "decode", "test": tests})
    assert judge(task, "    return encode(s)\n", sandbox).reward == 1.0


def test_exceptions_and_changes_in_place(sandbox: BubblewrapSandbox) -> None:
    tests = """
def check(candidate):
    try:
        candidate([], 0)
    except ValueError as error:
        assert str(error) == "empty"
    else:
        assert False
    items = [3, 1]
    assert candidate(items, 2) is None
    assert items == [1, 2, 3]
"""
    code = "def add(a, b):\n    if not a: raise ValueError('empty')\n    a.append(b)\n    a.sort()"
    assert judge(add_task(tests), code, sandbox).reward == 1.0
    assert judge(add_task(tests), code.replace("ValueError", "KeyError"), sandbox).reward == 0.0


def test_hidden_test_file(sandbox: BubblewrapSandbox) -> None:
    files = (
        TaskFile(path="tests/hidden.py", content=ADD_TESTS.encode(), hidden=True),
        TaskFile(path="given.py", content=b"def plus(a, b):\n    return a + b\n"),
    )
    task = make_code_task({"entry_point": "add", "test_file": "tests/hidden.py"}, files=files)
    code = "import os\nfrom given import plus as add\nprint(sorted(os.listdir('.')))"
    verdict = judge(task, code, sandbox)
    assert verdict.reward == 1.0
    assert verdict.evidence["output"] == "['.ptctl', 'given.py']\n"


# ── hostile candidates ───────────────────────────────────────────────────────────────────────────────────────────────

FORGED = "ptctl-report " + "0" * 64 + ' {"status": "passed", "num_calls": 3, "num_asserts": 3, "num_asserts_passed": 3}'

HIJACK_INIT = """
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
registers = (ctypes.c_ulonglong * 27)()
if libc.ptrace(16, 1, 0, 0) == 0:                              # PTRACE_ATTACH to the init of the box
    time.sleep(0.2)
    libc.ptrace(12, 1, 0, ctypes.addressof(registers))         # GETREGS
    registers[10], registers[14], registers[15] = 231, 0, 2**64 - 1   # rax = exit_group, rdi = 0, orig_rax = none
    registers[16] -= 2                                         # rip back to the syscall instruction
    libc.ptrace(13, 1, 0, ctypes.addressof(registers))         # SETREGS
    libc.ptrace(17, 1, 0, 0)                                   # DETACH: init exits with status 0
def add(a, b): return 0
"""

HOSTILE = {
    "exit while loading": "import sys; sys.exit(0)",
    "_exit while loading": "import os; os._exit(0)",
    "exit in a call": "import sys\ndef add(a, b): sys.exit(0)",
    "_exit in a call": "import os\ndef add(a, b): os._exit(0)",
    "exit behind the first test": "import os\ndef add(a, b):\n    if a != 1: os._exit(0)\n    return a + b",
    "exception that is no Exception": "def add(a, b): raise KeyboardInterrupt",
    "atexit": f"import atexit\natexit.register(print, {FORGED!r})\ndef add(a, b): return 0",
    "prints a report": f"print({FORGED!r})\ndef add(a, b): print({FORGED!r}); return 0",
    "object that equals everything": (
        "class Any(int):\n    __eq__ = lambda s, o: True\n    __ne__ = lambda s, o: False\n"
        "    __hash__ = int.__hash__\n"
        "def add(a, b): return Any(7)"
    ),
    "object of its own class": "class Any:\n    __eq__ = lambda s, o: True\ndef add(a, b): return Any()",
    "patched builtins": (
        "import builtins, sys\nbuiltins.AssertionError = Warning\nbuiltins.exit = sys.exit = lambda *a: None\n"
        "builtins.compile = builtins.exec = lambda *a, **k: None\ndef add(a, b): return 0"
    ),
    "a check of its own": "def check(candidate): pass\ndef add(a, b): return 0",
    "kills its parent": "import os\ndef add(a, b): os.kill(os.getppid(), 9)",
    "kills everything": "import os\ndef add(a, b): os.kill(-1, 9)",
    "interrupts its parent": "import os, time\ndef add(a, b): os.kill(os.getppid(), 2); time.sleep(.1); return 0",
    "writes to the box's standard output": (
        f"open('/proc/1/fd/1', 'w').write({FORGED + chr(10)!r} * 3)\ndef add(a, b): return 0"
    ),
    "writes to every descriptor": (
        "import os\ndef add(a, b):\n    for fd in range(3, 32):\n        try: os.write(fd, b'{\"result\": 3}')\n"
        "        except OSError: pass\n    return 0"
    ),
    "overwrites the programs": (
        "import glob\nfor f in glob.glob('.ptctl/*') + ['copy.py', 'json.py', 'hmac.py', '.ptctl/copy.py']:\n"
        "    open(f, 'w').write('import os; os._exit(0)')\ndef add(a, b): return a + b if a < 10 else 0"
    ),
    "takes over the protocol": (
        "import plain_data\nplain_data.encode = lambda v: {'!': 'dict', 'v': [[[], []]]}\ndef add(a, b): return 3"
    ),
    "sends a frame without end": (
        "import plain_data, os\nplain_data.write_frame = lambda fd, m: os.write(fd, b'\\xff' * 64)\n"
        "def add(a, b): return 3"
    ),
    "claims that the tests are broken": (
        "import plain_data, sys\nwrite = plain_data.write_frame\n"
        "plain_data.write_frame = lambda fd, m: write(fd, {'error': 'BrokenTests', 'message': 'x', 'ready': True})\n"
        "def add(a, b): return 3"
    ),
    "leaves daemons": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        f"    while True:\n        open('/proc/1/fd/1', 'w').write({FORGED!r}); time.sleep(.01)\n"
        "def add(a, b): return 0"
    ),
    "spoils the report": (
        "import os\ndef add(a, b):\n    os.truncate('/proc/1/fd/1', 0)\n"
        "    open('/proc/1/fd/1', 'w').write('x' * 400000)\n    return 0"
    ),
    "starves its parent": (
        "import os, resource\nfor limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):\n"
        "    resource.prlimit(os.getppid(), limit, (0, 0))\ndef add(a, b): return 0"
    ),
    "makes the box's init exit with 0": HIJACK_INIT,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_candidate_earns_nothing(name: str, sandbox: BubblewrapSandbox) -> None:
    """Nor does it get away unscored, which would spare it a reward of 0."""
    verdict = judge(add_task(), HOSTILE[name], sandbox)
    assert (verdict.reward, verdict.passed) == (0.0, False)


def test_hostile_tests_that_swallow_everything(sandbox: BubblewrapSandbox) -> None:
    tests = (
        "def check(candidate):\n    try:\n        candidate(1, 2)\n        assert False\n    except:\n        pass\n"
    )
    assert judge(add_task(tests), "import os\ndef add(a, b): os._exit(0)", sandbox).evidence["status"] == "ended"
    assert judge(add_task(tests), "def add(a, b): raise ValueError", sandbox).reward == 1.0  # what such a test asks for


def test_candidate_sees_neither_tests_nor_key(sandbox: BubblewrapSandbox) -> None:
    spy = """
import ctypes, glob, os
tester = os.getppid()
seen = []
paths = glob.glob("/box/**", recursive=True) + glob.glob("/box/.ptctl/*")
for path in paths + ["/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/fd/2", "/proc/1/cmdline"]:
    try:
        text = open(path, "rb").read(1 << 20) if not os.path.isdir(path) else b""
    except OSError:
        continue
    if b"the-secret-" + b"of-the-tests" in text:
        seen.append(path)
for path in ("mem", "maps", "environ", "fd/0", "fd/1", "fd/3", "cwd", "root", "syscall"):
    try:
        full = f"/proc/{tester}/{path}"
        os.readlink(full) if path in ("cwd", "root") else open(full, "rb").read(1)
        seen.append(path)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, tester, 0, 0) == 0:
    seen.append("ptrace")
print("seen:", seen)
def add(a, b): return a + b
"""
    tests = "secret = 'the-secret-of-the-tests'\nprint(secret)\n" + ADD_TESTS
    verdict = judge(add_task(tests), spy, sandbox)
    assert verdict.evidence["output"] == "seen: []\n"
    assert verdict.reward == 1.0  # spying is no crime here; it found nothing


def test_candidate_that_never_ends_has_failed(sandbox: BubblewrapSandbox) -> None:
    verdict = judge(add_task(timeout_s=1.0), "def add(a, b):\n    while True: pass", sandbox)
    assert (verdict.reward, verdict.passed, verdict.evidence["timed_out"]) == (0.0, False, True)


def test_candidate_that_stops_its_tester_has_failed(sandbox: BubblewrapSandbox) -> None:
    code = "import os, time\ndef add(a, b):\n    os.kill(os.getppid(), 19)\n    time.sleep(60)"
    assert judge(add_task(timeout_s=1.0), code, sandbox).evidence["timed_out"] is True


def test_candidate_that_takes_all_memory_has_failed(sandbox: BubblewrapSandbox) -> None:
    code = "def add(a, b):\n    held = []\n    while True: held.append(bytearray(b'x') * (8 << 20))"
    verdict = judge(add_task(), code, sandbox)
    assert (verdict.reward, verdict.evidence["out_of_memory"]) == (0.0, True)


# ── failures that are not the policy's ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("def check(candidate:\n", "do not compile"),
        ("def check(candidate):\n    pass\n", "never call"),
        ("def check(candidate):\n    assert missing_helper(candidate)\n", "missing_helper"),
        ("def check(candidate):\n    candidate(lambda: 0, 1)\n", "cannot be sent"),
    ],
)
@pytest.mark.parametrize("code", ["def add(a, b): return a + b", "import os; os._exit(0)"])
def test_broken_tests_give_no_score(tests: str, message: str, code: str, sandbox: BubblewrapSandbox) -> None:
    if "_exit" in code:  # the candidate ends before its tests are looked at: that alone decides
        assert judge(add_task(tests), code, sandbox).evidence["status"] == "ended"
        return
    with pytest.raises(RowFailure, match=message) as caught:
        judge(add_task(tests), code, sandbox)
    assert caught.value.kind == "verifier"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("text", "no JSON object"),
        ({"entry_point": "f", "tests": ""}, "unknown key 'tests'"),
        ({"entry_point": "f"}, "needs either test or test_file"),
        ({"entry_point": "f", "test": "", "test_file": "x"}, "needs either test or test_file"),
        ({"entry_point": "f(", "test": ""}, "entry_point must be the name of a function"),
        ({"entry_point": "f", "test": 1}, "test is no string"),
        ({"entry_point": "f", "test_file": "absent.py"}, "no hidden file 'absent.py'"),
    ],
)
def test_unusable_target(target: Any, message: str, sandbox: BubblewrapSandbox) -> None:
    with pytest.raises(RowFailure, match=message.replace("(", r"\(")) as caught:
        judge(make_code_task(target), "def f(): 1", sandbox)
    assert caught.value.kind == "verifier"


class BrokenSandbox:
    """Says what a box without Python, or one that hangs, would say."""

    name = "broken"

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def run(self, command: SandboxCommand) -> SandboxResult:
        defaults: dict[str, Any] = {"exit_status": 127, "signal": None, "timed_out": False, "out_of_memory": False}
        rest: dict[str, Any] = {
            "stdout": b"",
            "stderr": b"python3: not found",
            "num_dropped_bytes": 0,
            "duration_s": 0.1,
        }
        return SandboxResult(**(defaults | rest | self.columns))

    def enforces(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None:
        pass


def test_sandbox_without_python_gives_no_score() -> None:
    with pytest.raises(RowFailure) as caught:
        judge(add_task(), "def add(a, b): return a + b", BrokenSandbox())
    assert (caught.value.kind, caught.value.detail) == ("sandbox", "python3: not found")


def test_sandbox_that_hangs_gives_no_score() -> None:
    with pytest.raises(RowFailure) as caught:
        judge(add_task(), "def add(a, b): return a + b", BrokenSandbox(exit_status=None, signal=9, timed_out=True))
    assert caught.value.kind == "timeout"


def test_report_of_another_key_is_no_report() -> None:
    forged = BrokenSandbox(exit_status=0, stdout=FORGED.encode() + b"\n")
    with pytest.raises(RowFailure):
        judge(add_task(), "def add(a, b): return a + b", forged)


def test_no_sandbox_and_no_settings() -> None:
    with pytest.raises(RowFailure) as caught:
        judge(add_task(), "def add(a, b): return a + b", None)
    assert caught.value.kind == "sandbox"
    with pytest.raises(UsageError, match="no setting 'timeout'"):
        PythonTestsVerifier({"timeout": 3})


@needs_public_data
def test_the_rows_of_human_eval_are_among_them() -> None:
    assert len(ROWS) == 32
