from __future__ import annotations

import pytest

from ptctl.verifiers.answer_code import assemble, defines, extract_code, fenced_blocks

PROMPT = 'from typing import List\n\ndef f(x):\n    """Double it."""\n'


def test_blocks_of_a_text() -> None:
    text = "a\n```python\nx = 1\n```\nb\n~~~\ny\n```\n~~~\n```json\n{}\n```"
    assert fenced_blocks(text) == [("python", "x = 1\n"), ("", "y\n```\n"), ("json", "{}\n")]


def test_block_that_was_cut_off() -> None:
    assert fenced_blocks("```py\nx = 1\ny =") == [("py", "x = 1\ny =\n")]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("    return 2 * x\n", "    return 2 * x\n"),
        (
            "Here:\n```python\ndef f(x):\n    return 2\n```\nUse it:\n```python\nprint(f(1))\n```",
            "def f(x):\n    return 2\n",
        ),
        ("```\nfirst\n```\n```py\nsecond\n```", "second\n"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("```python\ndef f(x): 1\n```\nBetter:\n```python\ndef f(x): 2\n```", "def f(x): 2\n"),
    ],
)
def test_code_of_an_answer(answer: str, code: str) -> None:
    assert extract_code(answer, "f") == code


@pytest.mark.parametrize(
    "code", ["def f(x): 1", "async def f (x): 1", "class f: 1", "f = 1", "f: int = 1", "x\ndef f(): 1"]
)
def test_definitions(code: str) -> None:
    assert defines(code, "f")


@pytest.mark.parametrize("code", ["    def f(x): 1", "def ff(x): 1", "f == 1", "f(1)", "# def f(", "return f"])
def test_what_is_no_definition(code: str) -> None:
    assert not defines(code, "f")


def test_programs() -> None:
    assert assemble(PROMPT, "    return 2 * x\n", "f") == PROMPT + "    return 2 * x\n"
    assert assemble(PROMPT, "def f(x): return 2\n", "f") == PROMPT + "\n\ndef f(x): return 2\n"
    assert assemble("def f(x):\n", "def f(x): return 2\n", "f") == "def f(x): return 2\n"
    assert assemble("", "def f(x): return 2\n", "f") == "\n\ndef f(x): return 2\n"
