"""Sections and keys of a recipe. The description of each key is its documentation (docs/reference/recipe.md)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ptctl.advantages import Estimator
from ptctl.token_weights import Normalisation


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are not coerced from strings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


class Run(Section):
    """What the run is called, and its seed."""

    name: str = Field("run", description="Name of the run, shown in reports.")
    seed: int = Field(0, ge=0, description="Seed of everything; all other seeds are hashed from it.")


class Pool(Section):
    """Where tasks come from (`ptctl run` imports them once into RUN/tasks)."""

    sources: list[str] = Field(
        [],
        description="Pool sources, relative to the recipe: a dataset, `*.jsonl`, or a `*.py` that defines "
        "generate(seed).",
    )
    seed: int = Field(0, ge=0, description="Seed that a generating source is given.")


class PolicySource(Section):
    """The policy that the run starts from."""

    path: str = Field(
        "",
        description="Model directory, relative to the recipe: config.json, tokenizer, and weights unless "
        "`initialize` is `random`.",
    )
    initialize: Literal["load", "random"] = Field(
        "load", description="`load` the weights, or start from `random` ones by the config's initializer_range."
    )


class Sample(Section):
    """How tasks are drawn for a batch."""

    strategy: Literal["adaptive", "uniform"] = Field(
        "adaptive",
        description="`adaptive` weighs learnability, failure rate and novelty; `uniform` gives all tasks "
        "the same weight.",
    )
    num_groups: int = Field(32, ge=1, description="Tasks of a batch; each becomes one group.")
    group_size: int = Field(8, ge=1, description="Trajectories of a group (G).")
    learnability_weight: float = Field(
        1.0, ge=0, description="Factor of 4p(1−p), p the posterior mean success of the task."
    )
    failure_weight: float = Field(0.25, ge=0, description="Factor of the observed failure rate.")
    novelty_weight: float = Field(0.5, ge=0, description="Factor of 1/(1 + number of draws so far).")
    floor_weight: float = Field(0.1, gt=0, description="Added to every weight, so that no task is ever out of reach.")
    quota_by: Literal["domain", "family"] = Field(
        "domain", description="What shares the batch: domains, or the families in them."
    )
    quota_balance: float = Field(
        0.5, ge=0, le=1, description="0: each gets its tasks' share of the summed weight; 1: all get the same."
    )


class Rollout(Section):
    """How episodes are played."""

    engine: str = Field("local", description="Engine plug-in: what generates.")
    endpoint: str | None = Field(None, description="URL of a served engine; not for in-process engines.")
    tool_call_format: str = Field("hermes", description="How the policy writes tool calls: `hermes` or `function`.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy and cannot be trained on.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus; keep 1 for training.")
    top_k: int = Field(-1, ge=-1, description="Candidates; −1 is all. Keep −1 for training.")
    max_new_tokens: int = Field(1024, ge=1, description="Tokens of one assistant message.")
    context_length: int | None = Field(
        None, ge=1, description="Longest trajectory in tokens; unset: what the model's config says."
    )
    max_in_flight: int = Field(512, ge=1, description="Episodes in flight.")
    max_running: int = Field(256, ge=1, description="Requests that an in-process engine decodes together.")
    num_threads: int = Field(1, ge=1, description="CPU threads of an in-process engine.")
    max_attempts: int = Field(2, ge=1, description="Tries of one trajectory when engine or environment fail.")
    shard_rows: int = Field(1024, ge=1, description="Trajectories after which a shard is committed.")
    shard_interval_s: float = Field(5.0, gt=0, description="Seconds after which what is finished is committed.")


class Scoring(Section):
    """How trajectories are verified."""

    sandbox: str = Field(
        "bubblewrap", description="Sandbox plug-in for verifiers that run code; started only when one asks for it."
    )


class Train(Section):
    """How the policy is updated."""

    backend: str = Field("megatron", description="Backend plug-in: what trains.")
    algorithm: Literal["sft", "grpo"] = Field(
        "grpo", description="`sft`: likelihood of the trajectories; `grpo`: clipped policy gradient."
    )
    estimator: Estimator = Field("grpo", description="How rewards of a group become advantages.")
    normalisation: Normalisation = Field(
        "token_mean", description="How token losses become one number, once and globally."
    )
    constant_length: float | None = Field(None, gt=0, description='The constant L of `normalisation = "dr_grpo"`.')
    clip_low: float = Field(0.2, gt=0, lt=1, description="The policy ratio is clipped at 1 − clip_low …")
    clip_high: float = Field(0.2, gt=0, description="… and at 1 + clip_high.")
    epochs: int = Field(1, ge=1, description="Passes over a batch.")
    rows_per_step: int = Field(0, ge=0, description="Trajectories of one optimizer step; 0: see steps_per_epoch.")
    steps_per_epoch: int = Field(1, ge=1, description="Optimizer steps of one pass, where rows_per_step is 0.")
    micro_batch_tokens: int = Field(
        16384, ge=1, description="Tokens, padding included, that go through the model together."
    )
    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate.")
    min_learning_rate: float = Field(0.0, ge=0, description="Where the decay ends.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear warm-up.")
    decay: Literal["constant", "cosine", "linear"] = Field("constant", description="Shape of the decay after warm-up.")
    decay_steps: int = Field(0, ge=0, description="Optimizer steps of the phase, for the decay.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second moment.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW's ε.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, ge=0, description="Clip gradients to this global norm; 0: do not clip.")
    train_truncated: bool = Field(True, description="Whether trajectories that a limit cut off enter the loss.")
    keep_checkpoints: int = Field(
        2, ge=0, description="Training checkpoints kept (the weights of every version stay); 0: all."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Train:
        if self.rows_per_step and self.steps_per_epoch != 1:
            raise ValueError("rows_per_step and steps_per_epoch exclude each other")
        if (self.normalisation == "dr_grpo") != (self.constant_length is not None):
            raise ValueError('constant_length goes with normalisation = "dr_grpo", and only with it')
        if self.decay != "constant" and self.decay_steps <= self.warmup_steps:
            raise ValueError("decay_steps must be larger than warmup_steps where decay is not constant")
        return self


class Evaluation(Section):
    """How held-out tasks are evaluated."""

    num_tasks: int = Field(0, ge=0, description="Held-out tasks; 0: all of them.")
    group_size: int = Field(1, ge=1, description="Trajectories of each held-out task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of evaluation.")
    strata: list[str] = Field(["domain", "family"], description="Facts by which success is broken down.")
    confidence: float = Field(
        0.95, gt=0, lt=1, description="Level of the intervals, and of calling a stratum improved or worsened."
    )
    at_end: bool = Field(True, description="Whether the run ends with an evaluation and `reports/final`.")


class Phase(Section):
    """A stretch of the run with its own settings, such as SFT before RL."""

    name: str = Field(description="Name of the phase.", min_length=1)
    steps: int = Field(ge=1, description="Batches of the phase.")
    evaluate_before: bool = Field(
        False,
        description="Evaluate the policy before the phase; the last such report is the baseline of `reports/final`.",
    )
    sample: dict[str, Any] = Field({}, description="Overrides of [sample] in this phase.")
    rollout: dict[str, Any] = Field({}, description="Overrides of [rollout] in this phase.")
    train: dict[str, Any] = Field({}, description="Overrides of [train] in this phase.")


class RecipeModel(Section):
    """A whole recipe."""

    run: Run = Run()  # pyright: ignore[reportCallIssue]
    pool: Pool = Pool()  # pyright: ignore[reportCallIssue]
    policy: PolicySource = PolicySource()  # pyright: ignore[reportCallIssue]
    sample: Sample = Sample()  # pyright: ignore[reportCallIssue]
    rollout: Rollout = Rollout()  # pyright: ignore[reportCallIssue]
    score: Scoring = Scoring()  # pyright: ignore[reportCallIssue]
    train: Train = Train()  # pyright: ignore[reportCallIssue]
    eval: Evaluation = Evaluation()  # pyright: ignore[reportCallIssue]
    phases: list[Phase] = []
