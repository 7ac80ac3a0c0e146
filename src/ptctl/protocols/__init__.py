"""What a plug-in must offer: Tokenizer, Engine, Environment, Verifier, Sandbox, Backend, Converter.

A stage knows these Protocols and nothing behind them; `ptctl.registry` finds the implementation by name. Each plug-in
is built with the settings class that stands above its Protocol.
"""

from __future__ import annotations

from ptctl.protocols.arrays import BoolArray, Float32Array, Float64Array, Int32Array, Int64Array
from ptctl.protocols.backend import (
    Backend,
    BackendSettings,
    LossSettings,
    OptimizerSettings,
    PlannedStep,
    StepMetrics,
    TrainRows,
)
from ptctl.protocols.converter import Converted, Converter, ConverterSettings
from ptctl.protocols.engine import Completion, Engine, EngineSettings, GenerateRequest, Tokenizer
from ptctl.protocols.environment import Environment, EnvironmentSettings, Observation
from ptctl.protocols.sandbox import Sandbox, SandboxCommand, SandboxLimits, SandboxResult
from ptctl.protocols.verifier import Verdict, Verifier

__all__ = [
    "Backend",
    "BackendSettings",
    "BoolArray",
    "Completion",
    "Converted",
    "Converter",
    "ConverterSettings",
    "Engine",
    "EngineSettings",
    "Environment",
    "EnvironmentSettings",
    "Float32Array",
    "Float64Array",
    "GenerateRequest",
    "Int32Array",
    "Int64Array",
    "LossSettings",
    "Observation",
    "OptimizerSettings",
    "PlannedStep",
    "Sandbox",
    "SandboxCommand",
    "SandboxLimits",
    "SandboxResult",
    "StepMetrics",
    "Tokenizer",
    "TrainRows",
    "Verdict",
    "Verifier",
]
