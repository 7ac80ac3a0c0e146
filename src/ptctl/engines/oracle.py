"""The engine that acts out reference solutions: demonstrations for SFT, and the check that a task can be solved.

It goes through the same rollout path as a policy, tools and environment included, so that a demonstration is an
ordinary trajectory. It needs the tokenizer of the policy directory, no weights and no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ptctl.engines.admission import check_context, check_sampling
from ptctl.engines.model_directory import read_model_directory
from ptctl.engines.tokenizer import HuggingFaceTokenizer
from ptctl.errors import DataError, RowFailure, Unavailable, UsageError
from ptctl.protocols import Completion, EngineSettings, GenerateRequest
from ptctl.records import ReferenceAction, Solution, Task
from ptctl.seeds import SEED_BITS, derive_seed
from ptctl.tool_calls import render_calls

REQUIRES = ("transformers",)
"""Modules that must be installed; see `ptctl.registry.check`."""


class OracleEngine:
    """Engine `oracle`. Implements `ptctl.protocols.Engine`.

    Each episode follows one of its task's solutions, chosen by their weights from the episode's seed. Action number
    `num_actions` becomes tokens: its text, its tool calls in the engine's format, and the end token. There are no
    log-probabilities and no policy versions; a temperature has no effect. `max_new_tokens` and the context length cut a
    message as they cut a policy's.
    """

    name: ClassVar[str] = "oracle"
    tokenizer: HuggingFaceTokenizer
    context_length: int
    policy_version: int | None

    def __init__(self, settings: EngineSettings) -> None:
        if settings.endpoint is not None:
            raise UsageError("the oracle engine has no endpoint", hint="leave it out, or name an engine that is served")
        self._settings = settings
        self._started = False

    async def start(self) -> None:
        """Load the tokenizer. Raises MissingExtra, InputNotFound, DataError or UsageError."""
        self._load(self._settings.policy)

    async def generate(self, request: GenerateRequest) -> Completion:
        """The next message of the chosen solution.

        Raises RowFailure where the request has no task, the task no solution, or the solution no such action.
        """
        if not self._started:
            raise Unavailable("the oracle engine is not running", hint="call start() first")
        check_sampling(request.sampling)
        _, limit = check_context(request, vocab_size=self.tokenizer.vocab_size, context_length=self.context_length)
        if request.task is None:
            raise RowFailure(f"request {request.request_id} has no task to act out", kind="engine")
        solution = choose_solution(request.task, request.episode_seed)
        if request.num_actions >= len(solution.actions):
            raise RowFailure(
                f"solution {solution.name!r} of task {request.task.task_id} has only {len(solution.actions)} actions",
                kind="engine",
            )
        text = self._text(solution.actions[request.num_actions], request.task)
        token_ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        return Completion(
            token_ids=token_ids[:limit],
            logprobs=None,
            finish_reason="stop" if len(token_ids) <= limit else "length",
            solution=solution.name,
        )

    async def update_policy(self, policy: Path, policy_version: int) -> None:
        """Use the tokenizer of `policy` from now on; the actions stay the tasks' own, so there still is no version."""
        self._load(policy)

    async def close(self) -> None:
        """Stop; safe to call twice."""
        self._started = False

    def _load(self, policy: Path) -> None:
        directory = read_model_directory(policy)
        context_length = directory.resolve_context_length(self._settings.context_length)
        self.tokenizer = HuggingFaceTokenizer(policy)
        self.context_length = context_length
        self.policy_version = None
        self._started = True

    def _text(self, action: ReferenceAction, task: Task) -> str:
        if not action.tool_calls:
            return action.content
        try:
            return action.content + render_calls(action.tool_calls, task.tools, self._settings.tool_call_format)
        except DataError as error:  # this task's reference cannot be written, which is no reason to stop the others
            raise RowFailure(f"a solution of task {task.task_id} cannot be written: {error}", kind="engine") from error


def choose_solution(task: Task, episode_seed: int) -> Solution:
    """The solution that the episode follows: the same for all its actions, with probability weight / sum of weights.

    Raises RowFailure(kind="engine") where there is none to choose.
    """
    weights = [solution.weight for solution in task.solutions]
    if any(weight < 0 for weight in weights) or not sum(weights) > 0:
        raise RowFailure(
            f"task {task.task_id} has no reference solution to act out",
            kind="engine",
            hint="give it solutions with weights above 0",
        )
    place = derive_seed("oracle", task.task_id, episode_seed) / (1 << SEED_BITS) * sum(weights)
    for solution in task.solutions:
        place -= solution.weight
        if place < 0:
            return solution
    # Rounding can leave a last crumb; it belongs to the last solution that can be chosen at all.
    return next(solution for solution in reversed(task.solutions) if solution.weight > 0)
