"""From arguments to the datasets and policies that are there, without reading any of them."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ptctl.errors import InputNotFound
from ptctl.shards.dataset import MANIFEST, shards_in
from ptctl.shards.run_directory import RunDirectory
from ptctl.shards.views import policy_directories


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset directory, or some of its shards."""

    directory: Path
    shards: tuple[Path, ...] | None = None
    """Shards that were named; None for all that are there, and then nothing may be missing or too much."""

    @property
    def scope(self) -> Path:
        """Keys are unique in the whole of a run that `ptctl run` made, elsewhere in the dataset.

        By hand the same draws can be rolled out with two policies, whose trajectories then have the same ids.
        """
        run = self.directory.parent.parent
        if self.directory.parent.name in ("batches", "trajectories", "scores") and RunDirectory(run).recipe.is_file():
            return self.directory.parent
        return self.directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What is to be checked."""

    datasets: tuple[Dataset, ...]
    policies: tuple[Path, ...]
    """Directories of numbered policies."""
    directories: tuple[Path, ...]
    """Every directory in which something may have been left behind."""


def find_places(arguments: Iterable[str]) -> Places:
    """What arguments name: runs and other directories at any depth, shards, globs.

    Raises InputNotFound for what names nothing that can be checked.
    """
    datasets: list[Dataset] = []
    named: dict[Path, list[Path]] = {}
    policies: list[Path] = []
    directories: list[Path] = []
    for argument in arguments:
        for path in _matches(argument):
            if not path.is_dir():
                named.setdefault(path.parent, []).append(path)
                continue
            below = list(_directories(path))
            found = [Dataset(directory=place) for place in below if _is_dataset(place)]
            numbered = policy_directories(path)
            if not found and not numbered:
                raise InputNotFound(f"neither datasets nor policies in {path}", hint="name a run, a dataset or a shard")
            datasets += found
            policies += numbered
            directories += below
    whole = {dataset.directory for dataset in datasets}
    datasets += [Dataset(directory=d, shards=tuple(shards)) for d, shards in named.items() if d not in whole]
    return Places(
        datasets=tuple(dict.fromkeys(datasets)),
        policies=tuple(dict.fromkeys(policies)),
        directories=tuple(dict.fromkeys([*directories, *policies])),
    )


def _matches(argument: str) -> list[Path]:
    if Path(argument).exists():
        return [Path(argument)]
    found = sorted(Path(name) for name in glob.glob(argument, recursive=True))
    if not found:
        raise InputNotFound(f"no such file or directory: {argument}")
    return found


def _directories(directory: Path) -> Iterator[Path]:
    for place, children, _ in os.walk(directory):
        children[:] = sorted(name for name in children if not name.startswith("."))
        yield Path(place)


def _is_dataset(directory: Path) -> bool:
    return (directory / MANIFEST).exists() or bool(shards_in(directory))
