"""Every error that a user, an operator or the data can cause, each with its exit code.

    PtctlError                      1   a bug when it escapes as such
    ├── UsageError                  2   flags, names and recipe keys that are not known
    ├── TooManyFailures            13   more rows failed than --max-errors allows
    ├── DataError                  65   what was read cannot be right
    │   ├── SchemaMismatch              another schema version or fingerprint
    │   ├── DigestMismatch              a task or file is not the one that was recorded
    │   ├── DuplicateRow                the same key twice
    │   └── CorruptShard                unreadable or torn file
    ├── InputNotFound              66   a path or a task that is not there
    ├── Unavailable                69   engine, judge or sandbox cannot serve
    │   └── MissingExtra                an optional dependency is not installed
    ├── CannotCreate               73   the output exists already or cannot be made
    ├── OutputError                74   an I/O error while writing, such as a full disk
    ├── Interrupted                75   stopped and resumable: run the same command again
    ├── ConfigConflict             78   the configuration contradicts the data being resumed
    └── RowFailure                  1   one row failed; the stage that owns the row turns it into data

Only `ptctl.cli` turns these into exit codes. A failed *row* is data (see `records.RowError`): a plug-in raises
`RowFailure`, and no stage lets it pass. The gate's verdicts (10, 11, 12) are results and not errors; `ExitCode` has
them too.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every subcommand; one table for all of them."""

    OK = 0
    BUG = 1
    USAGE = 2
    REGRESSED = 10
    INCONCLUSIVE = 11
    NOTHING_EVALUATED = 12
    TOO_MANY_FAILURES = 13
    BAD_DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    CANNOT_CREATE = 73
    IO_ERROR = 74
    INTERRUPTED = 75
    CONFIG_CONFLICT = 78
    SIGINT = 130
    BROKEN_PIPE = 141
    SIGTERM = 143


EXIT_CODE_MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done; the gate passed",
    ExitCode.BUG: "a bug: traceback",
    ExitCode.USAGE: "usage: flags, names or recipe keys unknown",
    ExitCode.REGRESSED: "the gate found a regression",
    ExitCode.INCONCLUSIVE: "the gate is inconclusive (power or coverage)",
    ExitCode.NOTHING_EVALUATED: "nothing was evaluated",
    ExitCode.TOO_MANY_FAILURES: "more rows failed than --max-errors allows; what succeeded is committed",
    ExitCode.BAD_DATA: "bad data: schema, digest, duplicate or corrupt shard",
    ExitCode.NO_INPUT: "input not found",
    ExitCode.UNAVAILABLE: "engine, judge or sandbox unavailable, or an extra is not installed",
    ExitCode.CANNOT_CREATE: "cannot create the output",
    ExitCode.IO_ERROR: "I/O error, disk full",
    ExitCode.INTERRUPTED: "interrupted and resumable: run the same command again",
    ExitCode.CONFIG_CONFLICT: "configuration contradicts the data being resumed",
    ExitCode.SIGINT: "interrupted from the keyboard, nothing could be saved",
    ExitCode.BROKEN_PIPE: "the reader of standard output went away",
    ExitCode.SIGTERM: "terminated, nothing could be saved",
}


class PtctlError(Exception):
    """Base of the tree. `hint` says what to do next; the command line prints it on a line of its own."""

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (verifier workers); the default would drop the keyword argument.
        return (_rebuild, (type(self), str(self), self.hint))


def _rebuild(cls: type[PtctlError], message: str, hint: str | None) -> PtctlError:
    return cls(message, hint=hint)


class UsageError(PtctlError, ValueError):
    """Flags, names or recipe keys that are not known or contradict each other."""

    exit_code = ExitCode.USAGE


class TooManyFailures(PtctlError):
    """More rows failed than `--max-errors` allows; what succeeded is committed."""

    exit_code = ExitCode.TOO_MANY_FAILURES


class DataError(PtctlError, ValueError):
    """What was read cannot be right."""

    exit_code = ExitCode.BAD_DATA


class SchemaMismatch(DataError):
    """The file has another schema version or fingerprint than this version of ptctl writes."""


class DigestMismatch(DataError):
    """A task or a file is not the one that was recorded."""


class DuplicateRow(DataError):
    """The same key stands twice."""


class CorruptShard(DataError):
    """A file that cannot be read: torn, truncated or not Parquet at all."""


class InputNotFound(PtctlError, FileNotFoundError):
    """A path, a dataset or a row that is not there."""

    exit_code = ExitCode.NO_INPUT


class Unavailable(PtctlError):
    """An engine, judge or sandbox that cannot serve now."""

    exit_code = ExitCode.UNAVAILABLE


class MissingExtra(Unavailable):
    """An optional dependency is not installed; the hint is the pip line that installs it."""


class CannotCreate(PtctlError, FileExistsError):
    """The output exists already, or its place cannot be made."""

    exit_code = ExitCode.CANNOT_CREATE


class OutputError(PtctlError, OSError):
    """Writing failed: disk full, quota, I/O error."""

    exit_code = ExitCode.IO_ERROR


class Interrupted(PtctlError):
    """Stopped by a signal after what was finished was committed. The same command again goes on."""

    exit_code = ExitCode.INTERRUPTED


class ConfigConflict(PtctlError):
    """Resuming data that another model, sampling setting or task digest made."""

    exit_code = ExitCode.CONFIG_CONFLICT


class RowFailure(PtctlError):
    """One episode or one verification failed at a boundary; kept as `records.RowError`, never as a reward.

    `kind` names the boundary that was crossed: `engine`, `environment`, `sandbox`, `verifier`, `timeout`, `cancelled`.
    """

    def __init__(
        self, message: str, *, kind: str = "environment", detail: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_row_failure, (str(self), self.kind, self.detail, self.hint))


def _rebuild_row_failure(message: str, kind: str, detail: str | None, hint: str | None) -> RowFailure:
    return RowFailure(message, kind=kind, detail=detail, hint=hint)
