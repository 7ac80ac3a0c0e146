"""The rows that stages exchange: Task, Draw, Trajectory (with its Turns), Score and Policy.

Every row is a frozen dataclass; `ptctl.shards.schema` derives its Arrow schema from the annotations below, so this
package is the only place where a column is declared. A change here is a change of the schema: bump `SCHEMA_VERSION`
and say so in the changelog.

    Task ──task_id, task_digest──► Draw ──group_id──► Trajectory ──trajectory_id──► Score ──group_id──► Policy

Conventions
- `None` means "not known"; it is stored as NULL, never as NaN and never as 0.
- Token streams (`TokenIds`, `TokenMask`, `TokenFloats`) are never null; a stream that was not recorded is empty.
- `*_json` columns hold canonical JSON (sorted keys, no spaces) where the shape belongs to a plug-in.
- Units are in the names: `_s` seconds, `_bytes`, `num_` counts, `_at` Unix time in seconds.
"""

from __future__ import annotations

from ptctl.records.columns import (
    SCHEMA_VERSION,
    Float32,
    Float64,
    Int32,
    Int64,
    StreamInt16,
    StreamInt64,
    StringMap,
    Strings,
    TokenFloats,
    TokenIds,
    TokenMask,
    canonical_json,
    content_digest,
)
from ptctl.records.draw import Draw, Purpose
from ptctl.records.policy import Policy
from ptctl.records.score import Component, Score, ScoreStatus, UnscoredReason
from ptctl.records.task import (
    DIGESTED_TASK_FIELDS,
    Limits,
    Message,
    ReferenceAction,
    ReferenceCall,
    Role,
    Solution,
    Task,
    TaskFile,
    Tool,
    make_task,
    task_digest,
)
from ptctl.records.trajectory import Costs, Sampling, Segment, StopReason, Trajectory, VersionSpan
from ptctl.records.turn import RowError, ToolCall, Turn

ROW_TYPES: dict[str, type] = {
    "tasks": Task,
    "draws": Draw,
    "trajectories": Trajectory,
    "scores": Score,
    "policies": Policy,
}
"""Dataset kind → row type."""

__all__ = [
    "DIGESTED_TASK_FIELDS",
    "ROW_TYPES",
    "SCHEMA_VERSION",
    "Component",
    "Costs",
    "Draw",
    "Float32",
    "Float64",
    "Int32",
    "Int64",
    "Limits",
    "Message",
    "Policy",
    "Purpose",
    "ReferenceAction",
    "ReferenceCall",
    "Role",
    "RowError",
    "Sampling",
    "Score",
    "ScoreStatus",
    "Segment",
    "Solution",
    "StopReason",
    "StreamInt16",
    "StreamInt64",
    "StringMap",
    "Strings",
    "Task",
    "TaskFile",
    "TokenFloats",
    "TokenIds",
    "TokenMask",
    "Tool",
    "ToolCall",
    "Trajectory",
    "Turn",
    "UnscoredReason",
    "VersionSpan",
    "canonical_json",
    "content_digest",
    "make_task",
    "task_digest",
]
