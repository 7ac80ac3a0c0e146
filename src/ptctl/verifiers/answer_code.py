"""The policy's code in its answer, and the program that it makes together with the task's prompt.

Text work only: the answer is hostile, so it is neither parsed nor compiled outside of the sandbox.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+-]*)[^`\n]*")
PYTHON_LANGUAGES = frozenset(("python", "python3", "py", ""))


def extract_code(answer: str, entry_point: str) -> str:
    """The last fenced Python block that defines `entry_point`, else the last fenced Python block, else all of it."""
    blocks = [code for language, code in fenced_blocks(answer) if language.lower() in PYTHON_LANGUAGES]
    defining = [code for code in blocks if defines(code, entry_point)]
    return (defining or blocks or [answer])[-1]


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block; one that was cut off ends with the text."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.rstrip("\r"))
        if not fence:
            if match is not None:
                fence, language, lines = match[1], match[2], []
        elif match is not None and match[1].startswith(fence) and not match[2]:
            blocks.append((language, "\n".join(lines) + "\n"))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append((language, "\n".join(lines) + "\n"))
    return blocks


def defines(code: str, name: str) -> bool:
    """Whether a line of `code` defines or assigns `name` at the top level."""
    pattern = rf"^(?:(?:async[ \t]+)?def[ \t]+{name}[ \t]*\(|class[ \t]+{name}\b|{name}[ \t]*(?::[^=\n]*)?=(?!=))"
    return re.search(pattern, code, re.MULTILINE) is not None


def assemble(prompt: str, code: str, entry_point: str) -> str:
    """The program to be tested.

    Code that defines the entry point stands behind the prompt, which gives it imports and helpers; other code goes on
    where the prompt ends. A prompt that is no complete program (a signature without a body) helps only the latter.
    """
    if not defines(code, entry_point):
        return prompt + code
    return f"{prompt}\n\n{code}" if _is_program(prompt) else code


def _is_program(prompt: str) -> bool:
    try:
        compile(prompt, "prompt.py", "exec")  # the task's own text
    except (SyntaxError, ValueError):
        return False
    return True
