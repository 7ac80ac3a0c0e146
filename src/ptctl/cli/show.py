"""`ptctl show`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.text import Text

from ptctl.errors import InputNotFound, UsageError
from ptctl.records import Role, Score, ToolCall, Trajectory, Turn, VersionSpan
from ptctl.reports.table import report_console
from ptctl.reports.text import visible
from ptctl.shards.columns import compute, table_to_rows
from ptctl.shards.dataset import expand
from ptctl.shards.reader import read_table, shard_metadata
from ptctl.shards.schema import narrow_columns

app = typer.Typer(add_completion=False)
SHOWN_FORMATS = ("table", "json", "jsonl")
ROW_FORMATS = ("csv", "md", "parquet")
MAX_EVIDENCE_CHARS = 400
VERDICT_STYLES = {True: "green", False: "red", None: "yellow"}
STYLES = {"system": "magenta", "user": "cyan", "assistant": "bold", "tool": "yellow"}


@app.command()
def show_command(
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="Trajectory id, or the beginning of one.")],
    datasets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATASET…]", help="Run directories, datasets or shards (default: runs)."),
    ] = None,
    format_name: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="table for people, json or jsonl for programs.")
    ] = "table",
) -> None:
    """Show one trajectory: its turns with tool calls and times, policy versions, rewards by component, and its cost."""
    _refuse_unknown(format_name)
    shards = list(_shards(datasets or ["runs"]))
    row = _find_trajectory(trajectory, shards)
    scores = list(_find_scores(row.trajectory_id, shards))
    if format_name != "table":
        whole = {"trajectory": asdict(row), "scores": [asdict(score) for score in scores]}
        sys.stdout.write(json.dumps(whole, default=_plain) + "\n")
        return
    console = report_console(sys.stdout)
    for text in render(row, scores):
        console.print(text, soft_wrap=True)


def _refuse_unknown(format_name: str) -> None:
    if format_name in SHOWN_FORMATS:
        return
    if format_name in ROW_FORMATS:
        raise UsageError(
            f"a trajectory cannot be shown as {format_name}: it is no table",
            hint=f"known: {', '.join(SHOWN_FORMATS)}; `ptctl query … --format {format_name}` writes rows",
        )
    raise UsageError(f"unknown format {format_name!r}", hint=f"known: {', '.join(SHOWN_FORMATS)}")


def _shards(arguments: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for argument in arguments:
        for path in expand(argument):
            kind = shard_metadata(path)["kind"]
            if kind in ("trajectories", "scores"):
                yield kind, path


def _find_trajectory(name: str, shards: Sequence[tuple[str, Path]]) -> Trajectory:
    found: dict[str, Path] = {}
    for kind, path in shards:
        if kind == "trajectories":
            ids = read_table(path, kind, ["trajectory_id"]).column(0)
            found.update(dict.fromkeys(ids.filter(compute.starts_with(ids, name)).to_pylist(), path))
    if not found:
        raise InputNotFound(
            f"no trajectory {name!r} in {len(shards)} shards", hint="name the run or dataset after the id"
        )
    if len(found) > 1:
        raise UsageError(f"{name!r} begins {len(found)} ids", hint=f"for example {', '.join(list(found)[:3])}")
    key, path = next(iter(found.items()))
    table = read_table(path, "trajectories")
    row: Trajectory = table_to_rows("trajectories", table.filter(compute.equal(table.column("trajectory_id"), key)))[0]
    return row


def _find_scores(trajectory_id: str, shards: Sequence[tuple[str, Path]]) -> Iterator[Score]:
    for kind, path in shards:
        if kind == "scores":
            table = read_table(path, kind, narrow_columns("scores"))
            yield from table_to_rows(
                "scores", table.filter(compute.equal(table.column("trajectory_id"), pa.scalar(trajectory_id)))
            )


def _plain(value: Any) -> Any:
    """Token streams, which are numpy arrays."""
    return value.tolist()


def render(row: Trajectory, scores: Sequence[Score]) -> Iterator[Text]:
    """Lines for a terminal.

    Text of the policy is shown as it is, never as markup; control characters are made visible.
    """
    versions = "" if row.policy_version_min is None else f", policy {row.policy_version_min}"
    if row.policy_version_max != row.policy_version_min:
        versions += f"-{row.policy_version_max}"
    yield _text(f"trajectory {row.trajectory_id}", style="bold underline")
    yield _text(f"task {row.task_id}  group {row.group_id}[{row.index}]  attempt {row.attempt}  {row.purpose}")
    yield _text(f"engine {row.engine}{versions}, temperature {row.sampling.temperature:g}, seed {row.seed}")
    for number, turn in enumerate(row.turns):
        yield from _render_turn(number, turn, row.version_spans)
    yield _text(f"stopped: {row.stop_reason}", style="bold")
    if row.error is not None:
        yield _text(f"error: {row.error.kind}: {row.error.message}", style="red")
    for score in scores:
        yield from _render_score(score)
    costs = row.costs
    yield _text(
        f"cost: {costs.num_turns} turns, {costs.num_prompt_tokens} prompt ({costs.num_cached_tokens} cached) + "
        f"{costs.num_completion_tokens} completion tokens, engine {costs.engine_s:.3f} s, queue {costs.queue_s:.3f} s, "
        f"environment {costs.environment_s:.3f} s, wall {costs.wall_s:.3f} s"
    )


def _text(line: str, style: str = "") -> Text:
    return Text(visible(line), style=style)


def _render_turn(number: int, turn: Turn, spans: Sequence[VersionSpan]) -> Iterator[Text]:
    head = Text(f"\n[{number}] {visible(turn.role)}", style=STYLES.get(turn.role, ""))
    head.append(f"  tokens {turn.token_start}-{turn.token_end}", style="dim")
    if turn.role == Role.ASSISTANT:
        times = f"queue {turn.queue_s:.3f} s, engine {turn.engine_s:.3f} s, environment {turn.environment_s:.3f} s"
        head.append(f"  {times}{_versions_of(turn, spans)}", style="dim")
    if turn.reward is not None:
        head.append(f"  reward {turn.reward:g}")
    if turn.finish_reason and turn.finish_reason != "stop":
        head.append(f"  ended by {visible(turn.finish_reason)}", style="red")
    yield head
    yield Text("    " + visible(turn.content).replace("\n", "\n    "))
    for call in turn.tool_calls:
        yield _render_call(call)


def _versions_of(turn: Turn, spans: Sequence[VersionSpan]) -> str:
    """The policy that spoke; where it was replaced while it spoke, each version with its tokens."""
    inside = [span for span in spans if span.token_start < turn.token_end and span.token_end > turn.token_start]
    if len({span.policy_version for span in inside}) > 1:
        parts = (f"{span.policy_version} at {span.token_start}-{span.token_end}" for span in inside)
        return f"  policy {', '.join(parts)}"
    return f"  policy {inside[0].policy_version}" if inside else ""


def _render_call(call: ToolCall) -> Text:
    levels = [
        name
        for name, reached in (
            ("parsed", call.parsed), ("known tool", call.known_tool), ("valid arguments", call.valid_arguments),
            ("executed", call.executed), ("succeeded", call.succeeded),
        )
        if reached
    ]  # fmt: skip
    line = f"    call {call.name or '?'} {call.arguments_json or ''}: {', '.join(levels) or 'not parsed'}"
    if call.duration_s is not None:
        line += f" in {call.duration_s:.3f} s"
    return _text(line + (f": {call.error}" if call.error else ""), style="green" if call.succeeded else "red")


def _render_score(score: Score) -> Iterator[Text]:
    verdict = {True: "passed", False: "failed", None: score.reason or score.status}[score.passed]
    style = VERDICT_STYLES[score.passed]
    judge = "" if score.judged_by == "verifier" else f", judged by {score.judged_by}"
    yield _text(
        f"score by {score.verifier} {score.verifier_version}: reward {_number(score.reward)}, {verdict}{judge}", style
    )
    for part in score.components:
        line = f"    {part.name}: {_number(part.value)} × {part.weight:g}"
        line += "" if part.turn is None else f", turn {part.turn}"
        yield _text(line + {True: ", passed", False: ", failed", None: ""}[part.passed], VERDICT_STYLES[part.passed])
    if score.answer is not None:
        yield _text(f"    answer {score.answer[:MAX_EVIDENCE_CHARS]}", "dim")
    if score.evidence_json != "{}":
        yield _text(f"    evidence {score.evidence_json[:MAX_EVIDENCE_CHARS]}", "dim")
    if score.error is not None:
        yield _text(f"    {score.error.kind}: {score.error.message}", "red")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
