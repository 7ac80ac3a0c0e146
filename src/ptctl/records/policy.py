"""Policy: a published policy."""

from __future__ import annotations

from dataclasses import dataclass

from ptctl.records.columns import Float64, Int32, Int64, Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published policy; `policy.json` in its directory, written last.

    The directory itself is what engines load (Hugging Face safetensors, config, tokenizer); `checkpoint/` in it is the
    backend's distributed checkpoint from which training resumes.
    """

    policy_version: Int32
    """Number of publishes so far; the initial policy is 0."""
    parent_version: Int32 | None
    """Version that training started from; None for the initial policy."""
    batch: str | None
    """Batch that was consumed to make it."""
    phase: str | None
    """Phase of the recipe."""
    algorithm: str | None
    """Training algorithm."""
    consumed_group_ids: Strings
    """Groups whose trajectories were consumed, trained or deliberately skipped, in canonical order."""
    num_steps: Int32
    """Optimizer steps taken for this version."""
    skipped_steps: Int32
    """Optimizer steps that had nothing to learn from."""
    num_trajectories: Int32
    """Trajectories with a non-zero token weight."""
    num_loss_tokens: Int64
    """Tokens with a non-zero token weight."""
    recipe_digest: str
    """sha256 of the resolved recipe."""
    backend: str
    """Backend plug-in by name."""
    weights_sha256: str
    """sha256 over the published weight files."""
    has_checkpoint: bool
    """Whether `checkpoint/` was written with it."""
    metrics_json: str
    """Training metrics: loss, gradient norm, KL, clip fraction, entropy …"""
    code_version: str
    """Version of ptctl."""
    created_at: Float64
    """Unix time."""
