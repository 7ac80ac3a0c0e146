"""Temporary names that no living writer owns."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from ptctl.checking.problems import Problem, ProblemKind
from ptctl.shards.dataset import is_complete
from ptctl.shards.files import TEMPORARY_MARK

NAME = re.compile(rf"\..+{re.escape(TEMPORARY_MARK)}(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+")


def check_leftovers(directory: Path) -> Iterator[Problem]:
    """What was left behind in `directory`.

    A process of this host is known to be gone; one of another host is where the dataset is complete, since nobody
    writes there any more.
    """
    complete = is_complete(directory)
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return  # the checkpoint of an old policy, which a running `train` has just removed
    for path in paths:
        match = NAME.fullmatch(path.name)
        if match is None:
            continue
        if match["host"] == socket.gethostname():
            if not Path(f"/proc/{match['pid']}").exists():
                detail = f"process {match['pid']}, which wrote it, is gone; --sweep removes it"
                yield Problem(path=path, problem=ProblemKind.LEFTOVER, detail=detail)
        elif complete:
            detail = f"left by {match['host']} in a dataset that is complete; remove it by hand"
            yield Problem(path=path, problem=ProblemKind.LEFTOVER, detail=detail)
