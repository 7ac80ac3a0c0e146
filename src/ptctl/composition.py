"""Recipe → the settings of stages and plug-ins: pure composition, nothing is started here."""

from __future__ import annotations

from pathlib import Path

from ptctl import registry
from ptctl.curriculum import CurriculumSettings
from ptctl.episode import MakeEnvironment
from ptctl.protocols import (
    BackendSettings,
    EngineSettings,
    Environment,
    EnvironmentSettings,
    LossSettings,
    OptimizerSettings,
)
from ptctl.recipe import RecipeModel
from ptctl.records import Purpose, Sampling, Task
from ptctl.seeds import derive_seed
from ptctl.training_plan import PlanSettings


def curriculum_settings(values: RecipeModel, purpose: Purpose) -> CurriculumSettings:
    """[sample] → curriculum; held-out tasks are drawn uniformly."""
    section = values.sample
    return CurriculumSettings(
        strategy="uniform" if purpose == Purpose.EVAL else section.strategy,
        learnability_weight=section.learnability_weight,
        failure_weight=section.failure_weight,
        novelty_weight=section.novelty_weight,
        floor_weight=section.floor_weight,
        quota_by=section.quota_by,
        quota_balance=0.0 if purpose == Purpose.EVAL else section.quota_balance,
    )


def engine_settings(values: RecipeModel, policy: Path) -> EngineSettings:
    """[rollout] → engine."""
    section = values.rollout
    return EngineSettings(
        policy=policy,
        tool_call_format=section.tool_call_format,
        endpoint=section.endpoint,
        max_running=section.max_running,
        context_length=section.context_length,
        num_threads=section.num_threads,
    )


def sampling(values: RecipeModel, purpose: str) -> Sampling:
    """[rollout], with the temperature of [eval] for held-out tasks."""
    section = values.rollout
    return Sampling(
        temperature=values.eval.temperature if purpose == Purpose.EVAL else section.temperature,
        top_p=section.top_p,
        top_k=section.top_k,
        max_new_tokens=section.max_new_tokens,
    )


def environment_maker(tool_call_format: str) -> MakeEnvironment:
    """A function that builds the environment that a task names."""

    def make(task: Task, seed: int) -> Environment:
        settings = EnvironmentSettings(task=task, seed=seed, tool_call_format=tool_call_format)
        environment: Environment = registry.load("environments", task.environment)(settings)
        return environment

    return make


def backend_settings(values: RecipeModel, policy: Path, phase: str, initialize: str) -> BackendSettings:
    """[train] → backend."""
    section = values.train
    return BackendSettings(
        policy=policy,
        initialize=initialize,
        seed=derive_seed(values.run.seed, "initialize"),
        phase=phase,
        optimizer=OptimizerSettings(
            learning_rate=section.learning_rate,
            min_learning_rate=section.min_learning_rate,
            num_warmup_steps=section.warmup_steps,
            num_decay_steps=section.decay_steps,
            decay=section.decay,
            beta1=section.beta1,
            beta2=section.beta2,
            epsilon=section.epsilon,
            weight_decay=section.weight_decay,
            max_grad_norm=section.max_grad_norm,
        ),
        loss=LossSettings(algorithm=section.algorithm, clip_low=section.clip_low, clip_high=section.clip_high),
    )


def plan_settings(values: RecipeModel, batch: str) -> PlanSettings:
    """[train] → plan; the shuffling of a batch depends on the run's seed and the batch's name alone."""
    section = values.train
    return PlanSettings(
        algorithm=section.algorithm,
        estimator=section.estimator,
        normalisation=section.normalisation,
        constant_length=section.constant_length,
        epochs=section.epochs,
        rows_per_step=section.rows_per_step,
        steps_per_epoch=section.steps_per_epoch,
        micro_batch_tokens=section.micro_batch_tokens,
        train_truncated=section.train_truncated,
        seed=derive_seed(values.run.seed, "train", batch),
    )
