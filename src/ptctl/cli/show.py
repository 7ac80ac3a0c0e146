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
from rich.console import Console
from rich.text import Text

from ptctl.errors import InputNotFound, UsageError
from ptctl.records import Score, Trajectory, Turn
from ptctl.shards.columns import compute, table_to_rows
from ptctl.shards.dataset import expand
from ptctl.shards.reader import read_table, shard_metadata
from ptctl.shards.schema import narrow_columns

app = typer.Typer()
STYLES = {"system": "magenta", "user": "cyan", "assistant": "bold", "tool": "yellow"}


@app.command()
def show_command(
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="Trajectory id, or the beginning of one.")],
    datasets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATASET…]", help="Run directories, datasets or shards (default: runs)."),
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="`table` for people, `json` for programs.")] = "table",
) -> None:
    """Show one trajectory: its turns with tool calls, rewards by component, and what it cost."""
    if output_format not in ("table", "json"):
        raise UsageError(f"unknown format {output_format!r}", hint="known: table, json")
    shards = list(_shards(datasets or ["runs"]))
    row = _find_trajectory(trajectory, shards)
    scores = list(_find_scores(row.trajectory_id, shards))
    if output_format == "json":
        sys.stdout.write(
            json.dumps({"trajectory": _plain(row), "scores": [asdict(score) for score in scores]}, default=_plain)
            + "\n"
        )
        return
    console = Console(
        file=sys.stdout, highlight=False, no_color=not sys.stdout.isatty(), force_terminal=sys.stdout.isatty()
    )
    for text in render(row, scores):
        console.print(text, soft_wrap=True)


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
    if isinstance(value, Trajectory):
        return asdict(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def render(row: Trajectory, scores: Sequence[Score]) -> Iterator[Text]:
    """Lines for a terminal.

    Text of the policy is shown as it is, never as markup; control characters are made visible.
    """
    versions = "" if row.policy_version_min is None else f", policy {row.policy_version_min}"
    if row.policy_version_max != row.policy_version_min:
        versions += f"-{row.policy_version_max}"
    yield Text(f"trajectory {row.trajectory_id}", style="bold underline")
    yield Text(f"task {row.task_id}  group {row.group_id}[{row.index}]  attempt {row.attempt}  {row.purpose}")
    yield Text(f"engine {row.engine}{versions}, temperature {row.sampling.temperature:g}, seed {row.seed}")
    for number, turn in enumerate(row.turns):
        yield from _render_turn(number, turn)
    yield Text(f"stopped: {row.stop_reason}", style="bold")
    if row.error is not None:
        yield Text(f"error: {row.error.kind}: {visible(row.error.message)}", style="red")
    for score in scores:
        yield from _render_score(score)
    costs = row.costs
    yield Text(
        f"cost: {costs.num_turns} turns, {costs.num_prompt_tokens} prompt ({costs.num_cached_tokens} cached) + "
        f"{costs.num_completion_tokens} completion tokens, engine {costs.engine_s:.3f} s, queue {costs.queue_s:.3f} s, "
        f"environment {costs.environment_s:.3f} s, wall {costs.wall_s:.3f} s"
    )


def _render_turn(number: int, turn: Turn) -> Iterator[Text]:
    head = Text(f"\n[{number}] {turn.role}", style=STYLES.get(turn.role, ""))
    head.append(f"  tokens {turn.token_start}-{turn.token_end}", style="dim")
    if turn.finish_reason and turn.finish_reason != "stop":
        head.append(f"  ended by {turn.finish_reason}", style="red")
    yield head
    yield Text("    " + visible(turn.content).replace("\n", "\n    "))
    for call in turn.tool_calls:
        levels = [
            name
            for name, reached in (
                ("parsed", call.parsed), ("known tool", call.known_tool), ("valid arguments", call.valid_arguments),
                ("executed", call.executed), ("succeeded", call.succeeded),
            )
            if reached
        ]  # fmt: skip
        written = visible(f"{call.name or '?'} {call.arguments_json or ''}")
        text = f"    call {written}: {', '.join(levels) or 'not parsed'}"
        yield Text(
            text + (f": {visible(call.error)}" if call.error else ""), style="green" if call.succeeded else "red"
        )


def _render_score(score: Score) -> Iterator[Text]:
    reward = "none" if score.reward is None else f"{score.reward:g}"
    verdict = {True: "passed", False: "failed", None: score.reason or score.status}[score.passed]
    style = {True: "green", False: "red", None: "yellow"}[score.passed]
    yield Text(f"score by {score.verifier} {score.verifier_version}: reward {reward}, {verdict}", style=style)
    for part in score.components:
        yield Text(f"    {part.name}: {'none' if part.value is None else f'{part.value:g}'} × {part.weight:g}")
    if score.evidence_json != "{}":
        yield Text(f"    evidence {visible(score.evidence_json)[:400]}", style="dim")
    if score.error is not None:
        yield Text(f"    {score.error.kind}: {visible(score.error.message)}", style="red")


def visible(text: str) -> str:
    """Control characters, but for new lines and tabs, as escapes: model text must not drive the terminal."""
    return "".join(
        c if c in "\n\t" or (c.isprintable() or c == " ") else c.encode("unicode_escape").decode() for c in text
    )
