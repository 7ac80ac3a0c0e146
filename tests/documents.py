"""Fenced blocks of the Markdown documents, with what a comment above a block says about running it.

<!-- run: exit 10 -->            the commands must leave with that status
<!-- run: install DIRECTORY -->  `pip install` of a package whose files the document gave; done without a network
<!-- run: demo -->               what the finished quickstart run stands for: it is run once for all documents
<!-- run: skip REASON -->        not run: only for what fetches something
<!-- file: PATH -->              the block is the content of that file
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELL = "bash"
DIRECTIVE = re.compile(r"<!-- (run|file): (.+) -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    document: Path
    line: int
    language: str
    text: str
    run: str = ""
    file: str = ""

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def markdown_files() -> list[Path]:
    """Every document of the project, hidden and generated directories left out."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.md")]
    return sorted(found)


def runnable_documents() -> list[Path]:
    """Documents whose commands are run."""
    pages = [*(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]
    return [ROOT / "README.md", *sorted(pages), *sorted((ROOT / "recipes").rglob("README.md"))]


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found: list[Block] = []
    lines = document.read_text(encoding="utf-8").splitlines()
    directive: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if match := DIRECTIVE.fullmatch(line.strip()):
            directive[match[1]] = match[2]
        elif line.startswith("```"):
            fence = line[: len(line) - len(line.lstrip("`"))]
            end = next(index for index in range(number + 1, len(lines)) if lines[index] == fence)
            found.append(
                Block(
                    document=document,
                    line=number + 1,
                    language=line.strip("`").strip(),
                    text="\n".join(lines[number + 1 : end]) + "\n",
                    run=directive.get("run", ""),
                    file=directive.get("file", ""),
                )
            )
            directive = {}
            number = end
        elif line.strip():
            directive = {}
        number += 1
    return found


def commands(document: Path) -> list[Block]:
    """The shell blocks of a document."""
    return [block for block in blocks(document) if block.language == SHELL and not block.file]
