"""A row of a TRL data set ↔ our rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptctl.converters import chat
from ptctl.converters.assembly import Draft, draft_score, draft_task, draft_trajectory
from ptctl.converters.json_input import decode, member, objects
from ptctl.errors import DataError
from ptctl.protocols import ConverterSettings
from ptctl.records import Component, Role, Score, Task, Tool, Trajectory, Turn
from ptctl.stats import SUCCESS_TOLERANCE

NAME = "trl"
HINT = "known columns: messages; prompt, completion; prompt, completion, label; [prompt,] chosen, rejected"
PREFERENCE = "preference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a row writes its conversations."""

    text: bool = False
    """As texts and not as messages."""
    implicit: bool = False
    """The prompt stands only as the common beginning of `chosen` and `rejected`."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Style:
        """The style of a source row. A prompt beside conversations that repeat it is not looked at."""
        if "chosen" in row:
            text = isinstance(row["chosen"], str)
            return cls(text=text, implicit=row.get("prompt") is None or isinstance(row["prompt"], str) != text)
        return cls(text=isinstance(row.get("completion"), str))

    @classmethod
    def read(cls, leftover: Mapping[str, Any]) -> Style:
        """The style that a leftover remembers; messages where there is none."""
        words = leftover.get("style", ())
        return cls(text="text" in words, implicit="implicit" in words)

    def words(self) -> list[str]:
        """For a leftover."""
        return [word for word in ("text", "implicit") if getattr(self, word)]


def row_type(row: Mapping[str, Any], where: str) -> str:
    """The type of a row by its columns. Raises DataError."""
    for found, columns in (
        ("messages", ("messages",)),
        (PREFERENCE, ("chosen", "rejected")),
        ("unpaired", ("prompt", "completion", "label")),
        ("prompt-completion", ("prompt", "completion")),
    ):
        if all(column in row for column in columns):
            return found
    raise DataError(f"{where}: no trajectory of a TRL type in columns {', '.join(row) or '(none)'}", hint=HINT)


def parse(row: Mapping[str, Any], where: str, settings: ConverterSettings, *, family: str, number: int) -> list[Draft]:
    """Our rows: two, chosen before rejected, of a preference; else one."""
    tools = _tools(row, where)
    kind = row_type(row, where)
    if kind == PREFERENCE:
        prompt, chosen, rejected = _preference(row, where)
        return [
            _draft(prompt, completion, tools, settings, family, preferred=preferred, group_key=str(number))
            for completion, preferred in ((chosen, True), (rejected, False))
        ]
    if kind == "messages":
        turns = _conversation(row, "messages", Role.USER, where)
        split = next((n for n, turn in enumerate(turns) if turn.role == Role.ASSISTANT), len(turns))
        return [_draft(turns[:split], turns[split:], tools, settings, family)]
    verdict = member(row, "label", "true or false", where, required=True) if kind == "unpaired" else None
    prompt = _conversation(row, "prompt", Role.USER, where)
    completion = _conversation(row, "completion", Role.ASSISTANT, where)
    return [_draft(prompt, completion, tools, settings, family, verdict=verdict)]


def _draft(
    prompt: Sequence[Turn],
    completion: Sequence[Turn],
    tools: tuple[Tool, ...],
    settings: ConverterSettings,
    family: str,
    *,
    preferred: bool | None = None,
    verdict: bool | None = None,
    group_key: str = "",
) -> Draft:
    known = verdict if verdict is not None else preferred
    preference = (Component(name=PREFERENCE, value=float(preferred)),) if preferred is not None else ()
    return Draft(
        task=draft_task(
            "", prompt, settings, family=family, tools=tools, environment="tools" if tools else "single_turn",
            source=NAME,
        ),
        trajectory=draft_trajectory(NAME, chat.with_progress([*prompt, *completion], tools), len(prompt)),
        score=draft_score(
            NAME, float(known) if known is not None else None, components=preference, passed=verdict
        ),
        group_key=group_key,
    )  # fmt: skip


def _conversation(row: Mapping[str, Any], key: str, role: Role, where: str) -> list[Turn]:
    value = row.get(key)
    if isinstance(value, str):
        return [chat.make_turn(role.value, value, where)]
    return chat.read_messages(objects(row, key, where, required=True), f"{where}: `{key}`")


def _tools(row: Mapping[str, Any], where: str) -> tuple[Tool, ...]:
    value = row.get("tools")
    if isinstance(value, str):  # a column of JSON texts, since Arrow unites the members of all tools
        value = decode(value.encode("utf-8", "surrogatepass"), f"{where}: `tools`")
    return chat.read_tools(member({"tools": value}, "tools", "an array", where) or [], where)


def _preference(row: Mapping[str, Any], where: str) -> tuple[list[Turn], list[Turn], list[Turn]]:
    """(prompt, chosen, rejected)."""
    style = Style.of(row)
    if style.implicit and style.text:
        chosen = member(row, "chosen", "a string", where, required=True)
        rejected = member(row, "rejected", "a string", where, required=True)
        common = _num_common(chosen, rejected)
        texts = ((Role.USER, chosen[:common]), (Role.ASSISTANT, chosen[common:]), (Role.ASSISTANT, rejected[common:]))
        prompt, one, other = ([chat.make_turn(role.value, text, where)] for role, text in texts)
        return prompt, one, other
    chosen, rejected = (_conversation(row, key, Role.ASSISTANT, where) for key in ("chosen", "rejected"))
    if not style.implicit:
        return _conversation(row, "prompt", Role.USER, where), chosen, rejected
    common = _num_common(chosen, rejected)
    return chosen[:common], chosen[common:], rejected[common:]


def _num_common(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(left), len(right)))


def derive(
    kind: str, style: Style, members: Sequence[Trajectory], task: Task, scores: Sequence[Score | None]
) -> dict[str, Any]:
    """The row of one trajectory, or of a chosen and a rejected one."""
    first = members[0]
    split = chat.num_prompt_turns(first.turns, task)
    prompt = _written(first.turns[:split], style)
    row: dict[str, Any]
    if kind == "messages":
        row = {"messages": chat.write_messages(first.turns)}
    elif kind == PREFERENCE:
        row = {} if style.implicit else {"prompt": prompt}
        for key, one in zip(("chosen", "rejected"), members, strict=True):
            completion = _written(one.turns[chat.num_prompt_turns(one.turns, task) :], style)
            row[key] = prompt + completion if style.implicit else completion
    else:
        row = {"prompt": prompt, "completion": _written(first.turns[split:], style)}
        if kind == "unpaired":
            row["label"] = success(scores[0])
    return row | ({"tools": chat.write_tools(task.tools)} if task.tools else {})


def _written(turns: Sequence[Turn], style: Style) -> Any:
    return "".join(turn.content for turn in turns) if style.text else chat.write_messages(turns)


def has_completion(trajectory: Trajectory, task: Task) -> bool:
    """Whether there is something to learn from."""
    return len(trajectory.turns) > chat.num_prompt_turns(trajectory.turns, task)


def success(score: Score | None) -> bool | None:
    """Whether the trajectory passed, as an evaluation counts it; None where it is not known."""
    if score is None or score.passed is not None or score.reward is None:
        return score.passed if score is not None else None
    return score.reward >= 1 - SUCCESS_TOLERANCE
