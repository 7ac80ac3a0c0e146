"""Column types of the rows, and JSON with equal bytes for equal values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

SCHEMA_VERSION = 1
"""Version of all the schemas; stored with every shard."""

Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Float32 = Annotated[float, "float32"]
Float64 = Annotated[float, "float64"]
TokenIds = Annotated[Sequence[int], "stream:int32"]
TokenMask = Annotated[Sequence[bool], "stream:bool"]
TokenFloats = Annotated[Sequence[float], "stream:float32"]
StreamInt16 = Annotated[Sequence[int], "stream:int16"]
StreamInt64 = Annotated[Sequence[int], "stream:int64"]
Strings = Annotated[tuple[str, ...], "list:string"]
StringMap = Annotated[Mapping[str, str], "map:string"]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal bytes. NaN and infinity raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()
