"""The loop: draw the next batch when the last one is consumed, evaluate where the plan says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ptctl.composition import curriculum_settings
from ptctl.errors import Interrupted
from ptctl.loop.plan import FINAL_REPORT, EvalItem, TrainItem
from ptctl.loop.processes import StageProcess, check_alive
from ptctl.loop.progress import Progress
from ptctl.recipe import Recipe, RecipeModel
from ptctl.records import Policy, Purpose
from ptctl.shards.dataset import is_complete, shards_in
from ptctl.shards.follow import Poll
from ptctl.shards.policies import published, versions
from ptctl.shards.run_directory import RunDirectory
from ptctl.stages import sample

MakeReport = Callable[[Path, Path | None, Path], None]
"""(score dataset, baseline score dataset, report directory) → report committed."""


class Supervisor:
    """Walks the plan. What is done is looked up on the disk, so that a killed run goes on where it was."""

    def __init__(
        self, recipe: Recipe, run: RunDirectory, stages: list[StageProcess], progress: Progress,
        make_report: MakeReport, on_commit: Callable[[Path], None], stopped: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.run_directory = run
        self.stages = stages
        self.progress = progress
        self.make_report = make_report
        self.on_commit = on_commit
        self.stopped = stopped
        self.baseline: Path | None = None

    def run(self, items: list[TrainItem | EvalItem]) -> None:
        """Carry out every item. Raises Interrupted after a signal and StageDied where a stage ended."""
        self._wait(lambda: bool(versions(self.run_directory.policies)))
        for number, item in enumerate(items, start=1):
            if isinstance(item, TrainItem):
                self._train(number, item)
            else:
                self._evaluate(number, item)

    def _wait(self, ready: Callable[[], bool]) -> None:
        poll = Poll()
        while not ready():
            if self.stopped():
                raise Interrupted("stopped; what is finished is committed", hint="the same command again goes on")
            check_alive(self.stages)
            self.progress.tick()
            poll.wait()

    def _consumer(self, batch: str) -> Policy | None:
        return next((policy for policy in published(self.run_directory.policies) if policy.batch == batch), None)

    def _train(self, number: int, item: TrainItem) -> None:
        label = f"{item.phase} batch {item.batch}"
        self.progress.begin(number, label, item.batch)
        if self._consumer(item.batch) is None:
            self._draw(item.batch, item.phase, Purpose.TRAIN)
            self._wait(lambda: self._consumer(item.batch) is not None)
            policy = self._consumer(item.batch)
            assert policy is not None
            self.progress.consumed(policy)
            self.on_commit(self.run_directory.policies / str(policy.policy_version))

    def _evaluate(self, number: int, item: EvalItem) -> None:
        version = self._version_for(item)
        batch = f"eval-{version}"
        report = self.run_directory.reports / item.report
        self.progress.begin(number, f"evaluation of policy {version}", batch)
        if item.report == FINAL_REPORT:
            _set_aside(report, version)
        if not (report / "eval.json").exists():
            self._draw(batch, item.phase, Purpose.EVAL, version)
            self._wait(lambda: is_complete(self.run_directory.scores / batch))
            self.make_report(self.run_directory.scores / batch, self.baseline, report)
            self.progress.say(f"report {report}")
            self.on_commit(report / "eval.json")
        self.baseline = self.run_directory.scores / batch

    def _version_for(self, item: EvalItem) -> int:
        """The newest version, or, before a phase that has begun already, the one that it began with."""
        if item.report != FINAL_REPORT:
            for policy in published(self.run_directory.policies):
                if policy.phase == item.phase and policy.parent_version is not None:
                    return policy.parent_version
        return versions(self.run_directory.policies)[-1]

    def _draw(self, batch: str, phase: str, purpose: Purpose, version: int | None = None) -> None:
        out = self.run_directory.batches / batch
        if is_complete(out):
            return
        values = self.recipe.for_phase(phase)
        version = versions(self.run_directory.policies)[-1] if version is None else version
        pool = shards_in(self.run_directory.tasks)
        options = _sample_options(values, purpose, pool, self._history(), out, self.recipe.digest)
        num_slots = sample.count_slots(options)
        facts = {"phase": phase, "purpose": purpose.value, "policy_version": version, "num_slots": num_slots}
        sample.run(sample.with_facts(options, facts))

    def _history(self) -> list[Path]:
        """Scores of the training batches that are complete."""
        directory = self.run_directory.scores
        names = [path for path in directory.iterdir() if path.name.isdigit()] if directory.is_dir() else []
        return [
            shard
            for path in sorted(names, key=lambda path: int(path.name))
            if is_complete(path)
            for shard in shards_in(path)
        ]


def _sample_options(
    values: RecipeModel, purpose: Purpose, pool: list[Path], history: list[Path], out: Path, digest: str
) -> sample.SampleOptions:
    is_eval = purpose == Purpose.EVAL
    return sample.SampleOptions(
        pool=pool,
        history=[] if is_eval else history,
        out=out,
        num_groups=values.eval.num_tasks if is_eval else values.sample.num_groups,
        group_size=values.eval.group_size if is_eval else values.sample.group_size,
        # Evaluations of all policies share their seeds, so that a paired comparison compares policies and not luck.
        seed=values.run.seed,
        purpose=purpose,
        batch="eval" if is_eval else out.name,
        settings=curriculum_settings(values, purpose),
        recipe_digest=digest,
    )


def _set_aside(report: Path, version: int) -> None:
    """A run that was extended gets a new final report; the earlier one stays under the version that it judged."""
    from ptctl.loop.reports import report_version

    judged = report_version(report)
    if judged is not None and judged != version:
        report.rename(report.with_name(f"policy-{judged}"))
