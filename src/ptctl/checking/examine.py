"""All checks over all places."""

from __future__ import annotations

from dataclasses import dataclass

from ptctl.checking.datasets import Shard, check_dataset
from ptctl.checking.leftovers import check_leftovers
from ptctl.checking.places import Places
from ptctl.checking.policies import check_policies
from ptctl.checking.problems import Problem
from ptctl.checking.relations import check_relations
from ptctl.shards.policies import versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was looked at, and what is wrong with it."""

    problems: tuple[Problem, ...]
    """In the order of their paths."""
    num_datasets: int
    num_unfinished: int
    """Datasets without a manifest: the stage that writes them has not finished, which is no problem."""
    num_shards: int
    num_rows: int
    num_policies: int


def examine(places: Places, *, deep: bool) -> Examination:
    """Check everything at `places`; `deep` reads every byte. Raises OutputError where memory or spill space end."""
    problems = [problem for directory in places.directories for problem in check_leftovers(directory)]
    shards: list[Shard] = []
    num_unfinished = 0
    for dataset in places.datasets:
        checked = check_dataset(dataset, deep=deep)
        problems += checked.problems
        shards += checked.shards
        num_unfinished += not checked.is_complete
    if deep:
        problems += check_relations(shards)
    for directory in places.policies:
        problems += check_policies(directory, deep=deep)
    return Examination(
        problems=tuple(sorted(set(problems))),
        num_datasets=len(places.datasets),
        num_unfinished=num_unfinished,
        num_shards=len(shards),
        num_rows=sum(shard.num_rows for shard in shards),
        num_policies=sum(len(versions(directory)) for directory in places.policies),
    )
