"""A row of verifiers' `results.jsonl` ↔ our rows.

Rows repeat their example id, one for each rollout, and in some files the ids stand at the wrong rows: the rollouts of
an example are those whose rows say the same of it. A row whose completion is empty, or that carries an error, was ended
by infrastructure: it has no score, whatever reward stands in it. With the state column `trajectory`, token ids and
log-probabilities are read and written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ptctl.converters import chat, token_streams
from ptctl.converters.assembly import Draft, draft_score, draft_task, draft_trajectory
from ptctl.converters.envelope import MEMBER
from ptctl.converters.json_input import as_object, known_number, member, objects
from ptctl.converters.leftovers import is_storable
from ptctl.converters.token_streams import Generation, Streams
from ptctl.protocols import ConverterSettings
from ptctl.records import (
    Component,
    Role,
    RowError,
    Sampling,
    Score,
    StopReason,
    Task,
    Trajectory,
    Turn,
    canonical_json,
)
from ptctl.tool_calls import replace_lone_surrogates

ID_KEYS = ("example_id", "id")
EXAMPLE_KEYS = ("task", "info")
"""Members that belong to the example and not to the rollout, beside prompt and answer."""
KNOWN_KEYS = frozenset((
    *ID_KEYS, *EXAMPLE_KEYS, "prompt", "completion", "answer", "reward", "error", "error_chain", "long_error_chain",
    "timing", "generation_ms", "scoring_ms", "total_ms", "is_completed", "is_truncated", "stop_condition", "metrics",
    "tool_defs", "token_usage", "trajectory", MEMBER,
))  # fmt: skip
"""A further member that is a number is a metric."""
STOP_OF_CONDITION = {
    "max_turns_reached": StopReason.TRUNCATED_TURNS,
    "prompt_too_long": StopReason.TRUNCATED_CONTEXT,
    "timeout_reached": StopReason.TIMEOUT,
}
CONDITION_OF_STOP = {stop.value: condition for condition, stop in STOP_OF_CONDITION.items()}
MS_PER_S = 1000.0
MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiersRows:
    """The row format; what the metadata says of all rows is given."""

    name: ClassVar[str] = "verifiers"

    settings: ConverterSettings
    family: str
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    trust_ids: bool = True
    """Name tasks by example id; see `ids_name_examples`."""

    def take_envelope(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """See RowFormat."""
        return {key: value for key, value in row.items() if key != MEMBER}, row.get(MEMBER)

    def put_envelope(self, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> dict[str, Any]:
        """See RowFormat."""
        return {**row, MEMBER: dict(envelope)}

    def parse(self, row: Mapping[str, Any], where: str) -> Draft:
        """See RowFormat."""
        prompt = _turns(row, "prompt", Role.USER, where)
        completion = _turns(row, "completion", Role.ASSISTANT, where)
        tools = _tools(row, where)
        turns = chat.with_progress([*prompt, *completion], tools)
        streams = _streams(row, turns, len(prompt), where)
        stop_reason, error = _ending(row, completion, where)
        timing = {**row, **(member(row, "timing", "an object", where) or {})}
        trajectory = draft_trajectory(
            self.name, turns, len(prompt), streams=streams, stop_reason=stop_reason.value, error=error,
            model=self.model, sampling=self.sampling,
        )  # fmt: skip
        if stop_reason.is_truncated:
            trajectory = replace(trajectory, final_answer=None)
        usage = member(row, "token_usage", "an object", where) or {}
        costs = replace(
            trajectory.costs,
            num_prompt_tokens=int(known_number(usage, "input_tokens", where) or 0),
            num_completion_tokens=int(known_number(usage, "output_tokens", where) or 0),
            wall_s=(known_number(timing, "generation_ms", where) or 0.0) / MS_PER_S,
        )
        score = draft_score(
            self.name,
            known_number(row, "reward", where),
            stop_reason=stop_reason,
            error=error,
            components=_components(row, where),
            verify_s=(known_number(timing, "scoring_ms", where) or 0.0) / MS_PER_S,
        )
        return Draft(
            task=self._task(row, turns[: len(prompt)], tools, where),
            trajectory=replace(trajectory, costs=costs),
            score=score,
        )

    def _task(self, row: Mapping[str, Any], prompt: Sequence[Turn], tools: Sequence[Any], where: str) -> Task:
        keys = (*ID_KEYS, *EXAMPLE_KEYS) if self.trust_ids else EXAMPLE_KEYS
        kept = {key: row[key] for key in keys if key in row and is_storable(row[key])}
        number = example_id(row) if self.trust_ids else None
        word = member(row, "task", "a string", where)
        return draft_task(
            str(number) if number is not None else _content_key(row),
            prompt,
            self.settings,
            family=self.family,
            target=row.get("answer"),
            domain=self.family if word in (None, "", "default") else word,
            tools=tuple(tools),
            environment="tools" if tools else "single_turn",
            source=self.name,
            original_json=canonical_json({self.name: kept}),
        )

    def derive(self, trajectory: Trajectory, task: Task, score: Score | None, *, own: bool) -> dict[str, Any]:
        """See RowFormat. The dialect is the one with `timing`; a value that is not known has no member."""
        split = chat.num_prompt_turns(trajectory.turns, task)
        kept = json.loads(task.original_json or "{}").get(self.name)
        example: dict[str, Any] = kept if isinstance(kept, dict) else {}
        if own and not example:
            example = {"example_id": trajectory.task_id}
        target = json.loads(task.target_json)
        stop_reason = StopReason(trajectory.stop_reason)
        row: dict[str, Any] = {
            **example,
            "prompt": chat.write_messages(trajectory.turns[:split]),
            "completion": chat.write_messages(trajectory.turns[split:]),
            **({"answer": target} if target is not None else {}),
            "reward": score.reward if score is not None else None,
            **({"error": trajectory.error.message} if trajectory.error is not None else {}),
            "is_completed": not stop_reason.is_error,
            "is_truncated": stop_reason.is_truncated,
            "stop_condition": CONDITION_OF_STOP.get(stop_reason.value),
        }
        if task.tools and "oai_tools" not in (example.get("info") or {}):
            row["tool_defs"] = chat.write_tools(task.tools)
        if steps := _steps(trajectory, split):
            row["trajectory"] = steps
        return row | _measures(trajectory, score)


def example_id(row: Mapping[str, Any]) -> Any:
    """The example's number or name; None where the row has none."""
    return row.get("example_id", row.get("id"))


def ids_name_examples(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no id stands for two examples."""
    found: dict[str, str] = {}
    return all(found.setdefault(str(example_id(row)), key) == key for row in rows if (key := _content_key(row)))


def _content_key(row: Mapping[str, Any]) -> str:
    text = json.dumps([row.get(key) for key in ("prompt", "answer", *EXAMPLE_KEYS)], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _turns(row: Mapping[str, Any], key: str, role: Role, where: str) -> list[Turn]:
    """Messages, or the text of completion-type environments; null is no message."""
    value = row.get(key)
    if isinstance(value, str):
        return [chat.make_turn(role.value, value, where)]
    return chat.read_messages(objects(row, key, where, required=key == "prompt"), f"{where}: `{key}`")


def _tools(row: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    info = row.get("info")
    found = member(row, "tool_defs", "an array", where)
    if found is None and isinstance(info, dict):
        found = member(as_object(info, where), "oai_tools", "an array", f"{where}: `info`")
    return chat.read_tools(found or [], where)


def _ending(row: Mapping[str, Any], completion: Sequence[Turn], where: str) -> tuple[StopReason, RowError | None]:
    failure = row.get("error")
    if failure is not None:
        text = failure if isinstance(failure, str) else json.dumps(failure)
        line = replace_lone_surrogates(text.split("\n")[0][:MAX_MESSAGE_CHARS])[0]
        return StopReason.ENV_ERROR, RowError(kind="environment", message=line)
    if not completion:
        return StopReason.ENGINE_ERROR, RowError(kind="engine", message="the source has no completion")
    condition = member(row, "stop_condition", "a string", where)
    if condition in STOP_OF_CONDITION:
        return STOP_OF_CONDITION[condition], None
    if member(row, "is_truncated", "true or false", where):
        return StopReason.TRUNCATED_TOKENS, None
    return StopReason.COMPLETED, None


def _components(row: Mapping[str, Any], where: str) -> tuple[Component, ...]:
    """Metrics: the member `metrics`, else every further number. How they make the reward is not told: weight 0."""
    metrics = member(row, "metrics", "an object", where)
    if metrics is None:
        metrics = {key: value for key, value in row.items() if key not in KNOWN_KEYS and type(value) in (int, float)}
    place = f"{where}: `metrics`"
    return tuple(
        Component(name=key, value=known_number(metrics, key, place), weight=0.0)
        for key, value in metrics.items()
        if type(value) in (int, float)
    )


def _measures(trajectory: Trajectory, score: Score | None) -> dict[str, Any]:
    metrics = {part.name: part.value for part in score.components if part.turn is None} if score is not None else {}
    found: dict[str, Any] = {"metrics": metrics, **{key: metrics[key] for key in metrics if key not in KNOWN_KEYS}}
    costs = trajectory.costs
    verify_s = score.verify_s if score is not None else 0.0
    if costs.wall_s or verify_s:
        found["timing"] = {
            "generation_ms": costs.wall_s * MS_PER_S,
            "scoring_ms": verify_s * MS_PER_S,
            "total_ms": (costs.wall_s + verify_s) * MS_PER_S,
        }
    if costs.num_prompt_tokens or costs.num_completion_tokens:
        found["token_usage"] = {
            "input_tokens": float(costs.num_prompt_tokens),
            "output_tokens": float(costs.num_completion_tokens),
        }
    return found


def _streams(row: Mapping[str, Any], turns: Sequence[Turn], num_prompt: int, where: str) -> Streams | None:
    """Token streams of the state column `trajectory`; None unless each of the policy's messages has a step with ids."""
    steps = row.get("trajectory")
    assistant = [index for index, turn in enumerate(turns) if turn.role == Role.ASSISTANT]
    played = sum(index >= num_prompt for index in assistant)
    if not isinstance(steps, list) or not played or len(steps) != played:
        return None
    generations: list[Generation | None] = [None] * (len(assistant) - played)
    for number, step in enumerate(objects(row, "trajectory", where)):
        place = f"{where}: `trajectory[{number}].tokens`"
        tokens = member(step, "tokens", "an object", place)
        if tokens is None:
            return None
        generations.append(
            token_streams.check_generation(
                member(tokens, "prompt_ids", "an array", place, required=True),
                member(tokens, "completion_ids", "an array", place, required=True),
                member(tokens, "completion_logprobs", "an array", place),
                place,
            )
        )
    return token_streams.join(turns, generations)


def _steps(trajectory: Trajectory, num_prompt: int) -> list[dict[str, Any]]:
    """The state column `trajectory`; none unless each of the policy's messages has ids."""
    skipped = sum(turn.role == Role.ASSISTANT for turn in trajectory.turns[:num_prompt])
    generations = token_streams.split(trajectory)[skipped:]
    return [
        {
            "tokens": {
                "prompt_ids": generation.prompt_ids,
                "prompt_mask": [0] * len(generation.prompt_ids),
                "completion_ids": generation.completion_ids,
                "completion_mask": [1] * len(generation.completion_ids),
                **({"completion_logprobs": generation.logprobs} if generation.logprobs is not None else {}),
            }
        }
        for generation in generations
        if generation is not None and None not in generations
    ]
