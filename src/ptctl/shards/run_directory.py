"""Where the datasets of a run lie; followers need no other knowledge of each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ptctl.errors import InputNotFound


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths below the directory of a run."""

    root: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe of the run."""
        return self.root / "recipe.toml"

    @property
    def tasks(self) -> Path:
        """The pool."""
        return self.root / "tasks"

    @property
    def batches(self) -> Path:
        """Draws, a dataset for each batch: numbered for training, named for evaluation."""
        return self.root / "batches"

    @property
    def trajectories(self) -> Path:
        """Trajectories, a dataset for each batch."""
        return self.root / "trajectories"

    @property
    def scores(self) -> Path:
        """Scores, a dataset for each batch."""
        return self.root / "scores"

    @property
    def policies(self) -> Path:
        """Numbered policies."""
        return self.root / "policies"

    @property
    def reports(self) -> Path:
        """Evaluation reports."""
        return self.root / "reports"

    @property
    def logs(self) -> Path:
        """Standard error of the stage processes."""
        return self.root / "logs"

    def existing(self) -> RunDirectory:
        """Itself, where `ptctl run` has prepared it. Raises InputNotFound otherwise."""
        if not self.recipe.is_file():
            raise InputNotFound(f"{self.root} is no run directory", hint="`ptctl run RECIPE -o RUN` makes one")
        return self
