"""`sample`: a pure function from pool, history and seed to draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptctl.curriculum import CurriculumSettings
from ptctl.errors import ConfigConflict, DataError, DuplicateRow
from ptctl.records import Draw, Purpose, Task
from ptctl.shards.dataset import is_complete, shards_in
from ptctl.shards.reader import read_rows
from ptctl.shards.writer import Lineage, write_rows
from ptctl.stages import sample
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory

SETTINGS = CurriculumSettings(
    strategy="adaptive",
    learnability_weight=1.0,
    failure_weight=0.25,
    novelty_weight=0.5,
    floor_weight=0.1,
    quota_by="domain",
    quota_balance=0.5,
)


def make_pool(directory: Path, num_train: int = 12, num_eval: int = 5) -> list[Task]:
    tasks = [
        make_simple_task(f"{'ab'[i % 2]}/{i:03d}", domain="ab"[i % 2], split="train" if i < num_train else "eval")
        for i in range(num_train + num_eval)
    ]
    write_rows(tasks, "tasks", directory, Lineage())
    return tasks


def options(tmp_path: Path, **changes: object) -> sample.SampleOptions:
    values: dict[str, object] = {
        "pool": shards_in(tmp_path / "pool"),
        "out": tmp_path / "batches" / "1",
        "num_groups": 6,
        "group_size": 4,
        "seed": 0,
        "settings": SETTINGS,
    }
    return sample.SampleOptions(**(values | changes))  # type: ignore[arg-type]


def rows(paths: list[Path]) -> list[Draw]:
    return [row for path in paths for row in read_rows(path, "draws")]


def test_draws_say_why_and_the_same_call_changes_nothing(tmp_path: Path) -> None:
    make_pool(tmp_path / "pool")
    first = sample.run(options(tmp_path))
    draws = rows(first)
    assert [draw.group_id for draw in draws] == [f"1/{i:06d}" for i in range(6)]
    assert len({draw.task_id for draw in draws}) == 6
    assert {draw.task_id[0] for draw in draws} == {"a", "b"}
    for draw in draws:
        # Nothing is known yet: p = 1/2, never scored, never drawn.
        assert (draw.difficulty, draw.failure_rate, draw.learnability, draw.novelty) == (0.5, None, 0.25, 1.0)
        assert draw.weight == pytest.approx(0.1 + 1.0 + 0.5)
        assert (draw.group_size, draw.quota, draw.purpose) == (4, 0.5, "train")
    assert sample.run(options(tmp_path)) == first
    assert len({draw.seed for draw in draws}) == 6


def test_history_moves_the_weights_and_unscored_rows_are_no_failures(tmp_path: Path) -> None:
    tasks = make_pool(tmp_path / "pool", num_train=2)
    scores = []
    for task, rewards in ((tasks[0], [1.0, 1.0, 1.0, 0.0]), (tasks[1], [None, None, 0.0, None])):
        draw = make_draw(task, batch=task.task_id, group_size=4)
        scores += [make_score(make_trajectory(draw, index=i), reward=reward) for i, reward in enumerate(rewards)]
    history = [write_rows(scores, "scores", tmp_path / "scores", Lineage())]
    by_task = {draw.task_id: draw for draw in rows(sample.run(options(tmp_path, num_groups=2, history=history)))}
    assert by_task[tasks[0].task_id].failure_rate == 0.25
    assert by_task[tasks[1].task_id].failure_rate == 1.0  # one scored, the three unscored do not count
    assert by_task[tasks[0].task_id].novelty == 0.5


def test_evaluation_takes_every_held_out_task_once_and_training_none_of_them(tmp_path: Path) -> None:
    tasks = make_pool(tmp_path / "pool")
    held_out = sorted(task.task_id for task in tasks if task.split == "eval")
    found = rows(sample.run(options(tmp_path, num_groups=0, purpose=Purpose.EVAL, out=tmp_path / "eval")))
    assert [draw.task_id for draw in found] == held_out
    trained = rows(sample.run(options(tmp_path, num_groups=100, out=tmp_path / "t")))
    assert not {draw.task_id for draw in trained} & set(held_out)


def test_two_evaluations_under_one_name_share_their_seeds(tmp_path: Path) -> None:
    make_pool(tmp_path / "pool")
    first, second = (
        rows(sample.run(options(tmp_path, num_groups=0, purpose=Purpose.EVAL, out=tmp_path / name, batch="eval")))
        for name in ("eval-1", "eval-9")
    )
    assert [draw.seed for draw in first] == [draw.seed for draw in second]
    assert first[0].group_id != second[0].group_id


def test_a_kill_between_shard_and_manifest_is_mended(tmp_path: Path) -> None:
    make_pool(tmp_path / "pool")
    first = sample.run(options(tmp_path))
    (tmp_path / "batches" / "1" / "manifest.json").unlink()
    assert sample.run(options(tmp_path)) == first
    assert is_complete(tmp_path / "batches" / "1")


def test_another_batch_in_the_same_place_is_a_conflict(tmp_path: Path) -> None:
    make_pool(tmp_path / "pool")
    sample.run(options(tmp_path))
    with pytest.raises(ConfigConflict, match="6 draws stand there, 7 are asked for"):
        sample.run(options(tmp_path, num_groups=7))
    with pytest.raises(ConfigConflict, match="group_size of 1/000000 is 4 there and 8 now"):
        sample.run(options(tmp_path, group_size=8))


def test_bad_pools(tmp_path: Path) -> None:
    write_rows([make_simple_task("a/1", split="eval")], "tasks", tmp_path / "pool", Lineage())
    with pytest.raises(DataError, match="no task of split 'train'"):
        sample.run(options(tmp_path))
    write_rows([make_simple_task("a/1", split="eval")], "tasks", tmp_path / "pool", Lineage())
    with pytest.raises(DuplicateRow, match="a/1"):
        sample.run(options(tmp_path, purpose=Purpose.EVAL))
