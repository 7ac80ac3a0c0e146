"""Pools out of JSONL and of generating files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptctl.cli.pool import import_pool
from ptctl.errors import DataError, DuplicateRow, InputNotFound, UsageError
from ptctl.records import Task
from ptctl.shards.reader import read_rows

ODD = "\u2028\u2029\u0085\x0b\x0c"


def imported(tmp_path: Path, text: str, name: str = "pool.jsonl") -> list[Task]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return [row for path in import_pool([tmp_path / name], tmp_path / "out", 0) for row in read_rows(path, "tasks")]


def test_a_line_is_a_task_and_odd_line_ends_are_text(tmp_path: Path) -> None:
    text = f'{{"prompt": "a{ODD}b", "answer": 4}}\n\n'
    text += '{"question": "c", "answer": "x", "split": "eval", "difficulty": 0}\n'
    tasks = {task.prompt[0].content: task for task in imported(tmp_path, text)}
    assert set(tasks) == {f"a{ODD}b", "c"}
    assert tasks[f"a{ODD}b"].target_json == '"4"'
    assert (tasks["c"].split, tasks["c"].difficulty, tasks["c"].family) == ("eval", 0.0, "pool")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"prompt": "a"}\n', r"pool\.jsonl:1: needs `prompt` \(or `question`\) and `answer`"),
        ('{"prompt": "a", "answer": 1}\n{"prompt"\n', r"pool\.jsonl:2: no JSON"),
        ("[1]\n", r"pool\.jsonl:1: not a JSON object"),
        ("\n", "no tasks in"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        imported(tmp_path, text)
    assert not (tmp_path / "out").exists()


def test_duplicates_unknown_sources_and_generators(tmp_path: Path) -> None:
    with pytest.raises(DuplicateRow, match="stands twice"):
        imported(tmp_path, '{"prompt": "a", "answer": 1}\n' * 2)
    with pytest.raises(InputNotFound):
        import_pool([tmp_path / "none.jsonl"], tmp_path / "out", 0)
    with pytest.raises(UsageError, match="cannot import"):
        imported(tmp_path, "a,b\n", "pool.csv")
    with pytest.raises(DataError, match="defines no generate"):
        imported(tmp_path, "x = 1\n", "pool.py")
    with pytest.raises(DataError, match="yielded a int"):
        imported(tmp_path, "def generate(seed):\n    yield seed\n", "other.py")
