"""A Python file that makes tasks: `def generate(seed: int) -> Iterator[Task]`."""

from __future__ import annotations

import runpy
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ptctl.errors import DataError, PtctlError
from ptctl.records import Task


class GeneratorImporter:
    """Runs the file in this process: it is the user's own code, as a recipe is, and not the policy's."""

    suffixes: ClassVar[tuple[str, ...]] = (".py",)

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def tasks(self, source: Path) -> Iterator[Task]:
        """Tasks of `source`. Raises DataError where it defines no `generate` or yields something else."""
        try:
            yield from self._generate(source)
        except PtctlError:
            raise
        except Exception as error:
            raise DataError(f"{source}{_line_in(error, source)}: {type(error).__name__}: {error}") from error

    def _generate(self, source: Path) -> Iterator[Task]:
        generate = runpy.run_path(str(source)).get("generate")
        if not callable(generate):
            raise DataError(f"{source} defines no generate(seed)", hint="def generate(seed: int) -> Iterator[Task]")
        made: Any = generate(self.seed)
        for task in made:
            if not isinstance(task, Task):
                raise DataError(f"{source} yielded a {type(task).__name__}, not a ptctl.records.Task")
            yield task


def _line_in(error: BaseException, source: Path) -> str:
    """`:LINE` of the innermost frame in the user's file."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(source)]
    return f":{frames[-1].lineno}" if frames else ""
