"""What is going on in a run: a live table on a terminal, plain lines elsewhere. Everything is read from the disk."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live
from rich.table import Table

from ptctl.records import Policy
from ptctl.shards.dataset import read_manifest, shards_in
from ptctl.shards.run_directory import RunDirectory

PLAIN_INTERVAL_S = 30.0
SHOWN_METRICS = (
    ("success_rate", "success", 3),
    ("loss", "loss", 4),
    ("entropy", "entropy", 3),
    ("kl", "kl", 5),
    ("train_s", "train s", 1),
)
"""Key in the policy's metrics, how it is called, digits after the point."""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Progress:
    """Shown to people on standard error; never read back by anything."""

    run: RunDirectory
    num_items: int
    item: int = 0
    label: str = ""
    batch: str = ""
    success_rates: list[float] = field(default_factory=list[float])
    last: Policy | None = None
    started: float = field(default_factory=time.monotonic)
    last_line: float = field(default_factory=time.monotonic)
    live: Live | None = None

    def begin(self, item: int, label: str, batch: str) -> None:
        """An item of the plan begins."""
        self.item, self.label, self.batch = item, label, batch
        self.tick(force=self.live is not None)

    def consumed(self, policy: Policy) -> None:
        """A batch was consumed."""
        self.last = policy
        metrics = json.loads(policy.metrics_json)
        if metrics.get("success_rate") is not None:
            self.success_rates.append(metrics["success_rate"])
        if self.live is None:
            self.say(f"{self.label}: {describe(policy)}")

    def say(self, text: str) -> None:
        """Print one line, above the live table where there is one."""
        self.last_line = time.monotonic()
        line = f"[{time.monotonic() - self.started:6.1f} s] {text}"
        if self.live is not None:
            self.live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def tick(self, *, force: bool = False) -> None:
        """Refresh the table, or every half minute print a line."""
        if self.live is not None:
            self.live.update(self._table(), refresh=force)
        elif time.monotonic() - self.last_line >= PLAIN_INTERVAL_S:
            self.say(f"{self.label}: {self._counts()}")

    def _counts(self) -> str:
        expected = _expected_rows(self.run, self.batch)
        played = sum(pq.read_metadata(path).num_rows for path in shards_in(self.run.trajectories / self.batch))
        scored = sum(pq.read_metadata(path).num_rows for path in shards_in(self.run.scores / self.batch))
        return f"played {played}/{expected}, scored {scored}/{expected}"

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row("run", str(self.run.root), f"{time.monotonic() - self.started:.0f} s")
        table.add_row("now", f"{self.label} ({self.item} of {self.num_items})", self._counts())
        if self.last is not None:
            table.add_row("last", describe(self.last), "")
        if self.success_rates:
            table.add_row("success", sparkline(self.success_rates[-60:]), f"{self.success_rates[-1]:.2f}")
        return table


def _expected_rows(run: RunDirectory, batch: str) -> int:
    manifest = read_manifest(run.batches / batch)
    return int(manifest["facts"]["num_slots"]) if manifest else 0


def sparkline(values: list[float]) -> str:
    """Values in [0, 1] as a line of bars."""
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)


def describe(policy: Policy) -> str:
    """One line about a consumed batch."""
    metrics = json.loads(policy.metrics_json)
    parts = [f"policy {policy.policy_version}"]
    if policy.skipped_steps:
        parts.append("nothing to learn, skipped")
    for key, name, digits in SHOWN_METRICS:
        if metrics.get(key) is not None:
            parts.append(f"{name} {metrics[key]:.{digits}f}")
    return "  ".join(parts)


@contextmanager
def show_progress(progress: Progress) -> Generator[Progress]:
    """Show the table while the block runs, where standard error is a terminal."""
    # rich takes FORCE_COLOR=0 as "on", so the terminal is asked for directly.
    if not sys.stderr.isatty():
        yield progress
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        progress.live = live
        try:
            yield progress
        finally:
            progress.live = None
