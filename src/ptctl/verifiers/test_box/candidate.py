"""Runs the policy's code in a process of its own and answers calls of its entry point.

    python3 candidate.py REQUEST_FD REPLY_FD SOURCE ENTRY_POINT

Nothing here is trusted: the policy's code may change all of it. It can answer a call with any plain value, which is
all that a function can do, and it can die, which fails the tests.
"""

from __future__ import annotations

import builtins
import os
import random
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptctl.verifiers.test_box import plain_data
else:
    import plain_data  # beside this file, in the box

MAX_TEXT_CHARS = 1500


def describe(error: BaseException) -> dict[str, Any]:
    """Name of the nearest built-in class, message and traceback."""
    names = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    return {
        "error": names[0] if names else "Exception",
        "message": str(error)[:MAX_TEXT_CHARS],
        "traceback": traceback.format_exc()[-MAX_TEXT_CHARS:],
    }


def load(path: str, entry_point: str) -> Callable[..., Any]:
    """Execute the source and return its entry point."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    module = ModuleType("solution")  # not __main__: a script's own driver code must not run
    sys.modules["solution"] = module
    exec(compile(source, "solution.py", "exec"), module.__dict__)
    return getattr(module, entry_point)


def answer(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """Call the function; arguments that it changed in place go back with the result."""
    arguments: list[Any] = [plain_data.decode(value) for value in request["args"]]
    keywords = {name: plain_data.decode(value) for name, value in request["kwargs"].items()}
    result = function(*arguments, **keywords)
    after = [plain_data.encode(value) for value in arguments]
    changed = {str(i): value for i, value in enumerate(after) if value != request["args"][i]}
    return {"result": plain_data.encode(result), "changed": changed}


def main() -> None:
    """Load, say so, and serve until the tester closes the pipe."""
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    random.seed(0)
    sys.path[0] = os.getcwd()  # the task's own files, instead of the directory of this program
    try:
        function = load(sys.argv[3], sys.argv[4])
    except BaseException as error:
        plain_data.write_frame(replies, describe(error))
        raise
    plain_data.write_frame(replies, {"ready": True})
    while True:
        try:
            request = plain_data.read_frame(requests)
        except EOFError:
            return
        try:
            reply = answer(function, request)
        except BaseException as error:  # noqa: BLE001 - the tester decides what it means
            reply = describe(error)
        plain_data.write_frame(replies, reply)


if __name__ == "__main__":
    main()
