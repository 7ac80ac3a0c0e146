"""From score shards to the trajectories, draws and tasks behind them, each shard checked before anything reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptctl.errors import InputNotFound
from ptctl.shards.dataset import expand, is_complete, shards_in
from ptctl.shards.policies import POLICY_FILE
from ptctl.shards.reader import check_kind, input_paths, shard_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Shards of one side, by kind, in path order: the order of arguments must not change a number."""

    scores: tuple[Path, ...]
    trajectories: tuple[Path, ...]
    draws: tuple[Path, ...]
    tasks: tuple[Path, ...]


def follow(scores: Sequence[Path]) -> Shards:
    """Follow the lineage of score shards.

    A draws dataset that is complete counts as a whole, also where no trajectory came of one of its shards: slots that
    are missing altogether are what coverage is for.
    Raises SchemaMismatch, CorruptShard, or InputNotFound where a link of the lineage is gone.
    """
    found = _checked((path.resolve() for path in scores), "scores")
    trajectories = _upstream(found, "trajectories")
    draws = _whole_datasets(_upstream(trajectories, "draws"))
    return Shards(scores=found, trajectories=trajectories, draws=draws, tasks=_upstream(draws, "tasks"))


def _checked(paths: Iterable[Path], kind: str) -> tuple[Path, ...]:
    unique = sorted(set(paths))
    for path in unique:
        check_kind(shard_metadata(path), kind, path)
    return tuple(unique)


def _upstream(paths: Sequence[Path], kind: str) -> tuple[Path, ...]:
    """The inputs of one kind. Stages read other things too (a policy, scored history), which are passed over."""
    sources = dict.fromkeys(source for path in paths for source in input_paths(path))
    shards = (shard for source in sources if not (source / POLICY_FILE).exists() for shard in expand(str(source)))
    wanted = [shard.resolve() for shard in dict.fromkeys(shards) if shard_metadata(shard).get("kind") == kind]
    if paths and not wanted:
        raise InputNotFound(
            f"{paths[0]} names no {kind} among its inputs",
            hint="tasks are found by lineage; write shards with the inputs they were made from",
        )
    return _checked(wanted, kind)


def _whole_datasets(draws: Sequence[Path]) -> tuple[Path, ...]:
    directories = sorted({path.parent for path in draws if is_complete(path.parent)})
    siblings = (shard for directory in directories for shard in shards_in(directory))
    return _checked([*draws, *siblings], "draws")
