"""Shards as they are committed: from arguments, from a pipe, or from a directory that grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptctl.errors import InputNotFound, Interrupted, UsageError
from ptctl.shards.dataset import datasets_in, expand, is_complete, shards_in

MIN_POLL_S = 0.02
MAX_POLL_S = 0.2


@dataclass(slots=True)
class Poll:
    """Waits between looks at a directory: short after something was found, up to `MAX_POLL_S` while nothing comes."""

    interval_s: float = MIN_POLL_S

    def found(self) -> None:
        """Something was there: look again soon."""
        self.interval_s = MIN_POLL_S

    def wait(self) -> None:
        """Nothing was there: sleep, longer each time."""
        time.sleep(self.interval_s)
        self.interval_s = min(self.interval_s * 1.5, MAX_POLL_S)


def read_paths(arguments: Sequence[str], *, nul: bool = False) -> Iterator[Path]:
    """Shards named by arguments; `-` reads paths from standard input as they arrive, a line (or a NUL) each.

    Raises InputNotFound for what names nothing, UsageError where standard input is a terminal.
    """
    for argument in arguments:
        if argument != "-":
            yield from expand(argument)
            continue
        if sys.stdin.isatty():
            raise UsageError("'-' reads shard paths from standard input, which is a terminal")
        for line in _records(nul):
            if line:
                yield from expand(line)


def require_some(paths: Iterator[Path], stage: str) -> Iterator[Path]:
    """The same paths; raises InputNotFound where there are none: a broken pipeline must not end as a success."""
    first = next(paths, None)
    if first is None:
        raise InputNotFound(f"{stage}: no shards on standard input", hint="did the stage before fail?")
    yield first
    yield from paths


def _records(nul: bool) -> Iterator[str]:
    if not nul:
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    rest = ""
    while piece := sys.stdin.read(4096):
        *done, rest = (rest + piece).split("\0")
        yield from done
    yield rest


def follow_shards(directory: Path, *, stopped: Callable[[], bool]) -> Iterator[Path]:
    """Yield the shards of a dataset as they are committed, until its manifest is there and all were yielded.

    Raises Interrupted where `stopped` says so in between.
    """
    seen: set[Path] = set()
    poll = Poll()
    while True:
        complete = is_complete(directory)  # looked at before the listing, so that no late shard is missed
        fresh = [path for path in shards_in(directory) if path not in seen]
        for path in fresh:
            seen.add(path)
            yield path
        if complete:
            return
        if stopped():
            raise Interrupted(f"stopped while following {directory}")
        if fresh:
            poll.found()
        poll.wait()


def follow_datasets(directory: Path, *, done: Callable[[Path], bool], stopped: Callable[[], bool]) -> Iterator[Path]:
    """Yield each complete dataset below `directory` that is not `done`, lowest batch first, until `stopped`.

    Whether a dataset is done is looked up each time, never remembered: what is committed is the only fact.
    """
    finished: set[Path] = set()
    poll = Poll()
    while not stopped():
        waiting = next((path for path in datasets_in(directory) if path not in finished and not done(path)), None)
        if waiting is not None:
            yield waiting
            if done(waiting):
                finished.add(waiting)  # a dataset that is done stays done; saves looking again
            poll.found()
        else:
            poll.wait()
