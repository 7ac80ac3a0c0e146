"""Words that the glossary rules out stay out of the code, where they can be told from plain English."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src" / "ptctl").rglob("*.py"), *(ROOT / "recipes").rglob("*.py")])
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

BANNED = {
    "n_samples_per_prompt", "response_mask", "action_mask", "old_log_probs", "old_logprobs", "weight_version",
    "off_policyness",
}  # fmt: skip
"""Also in comments and strings."""
BANNED_NAMES = BANNED | {"rm", "sampled_rows"}
NOUN = re.compile(
    r"(^|_)(samples|sample_(id|ids|index|idx|size|sizes|count)|(num|n|each|per|this|one|next)_sample)(_|$)"
)
"""`sample` used as a noun, as a part of a name; the verb (`sample`, `sample_options`) stays free."""


def names(path: Path) -> Iterator[tuple[int, str]]:
    readline = io.StringIO(path.read_text(encoding="utf-8")).readline
    for token in tokenize.generate_tokens(readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def faults(name: str) -> bool:
    return name in BANNED_NAMES or NOUN.search(name.lower()) is not None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_banned_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not [word for word in BANNED if re.search(rf"(?<![A-Za-z]){word}", text)]
    assert not [f"{line}: {name}" for line, name in names(path) if faults(name)]


@pytest.mark.parametrize(
    "name", ["samples", "num_samples", "sample_id", "next_sample", "train_samples", "weight_version", "rm"]
)
def test_a_noun_is_found(name: str) -> None:
    assert faults(name)


@pytest.mark.parametrize(
    "name", ["sample", "sampled", "sampler", "sample_command", "resample", "sampling", "down_sample_to"]
)
def test_a_verb_is_free(name: str) -> None:
    assert not faults(name)


def test_the_glossary_names_every_banned_word() -> None:
    last_column = " ".join(
        line.split("|")[-2] for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if "|" in line
    )
    assert not [word for word in BANNED if word not in last_column]
