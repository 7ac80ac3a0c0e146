"""A Python file that makes tasks: `def generate(seed: int) -> Iterator[Task]`."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

from ptctl.errors import DataError
from ptctl.records import Task


class GeneratorImporter:
    """Runs the file in this process: it is the user's own code, as a recipe is, and not the policy's."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def tasks(self, source: Path) -> Iterator[Task]:
        """Tasks of `source`. Raises DataError where it defines no `generate` or yields something else."""
        generate = runpy.run_path(str(source)).get("generate")
        if not callable(generate):
            raise DataError(f"{source} defines no generate(seed)", hint="def generate(seed: int) -> Iterator[Task]")
        for task in generate(self.seed):  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
            if not isinstance(task, Task):
                raise DataError(f"{source} yielded a {type(task).__name__}, not a ptctl.records.Task")  # pyright: ignore[reportUnknownArgumentType]
            yield task
