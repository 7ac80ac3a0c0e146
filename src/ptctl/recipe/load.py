"""Read, override, validate and resolve a recipe."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from ptctl.advantages import check_group_size
from ptctl.errors import InputNotFound, UsageError
from ptctl.recipe.lines import KeyPath, key_lines, line_of
from ptctl.recipe.model import Phase, RecipeModel
from ptctl.records import content_digest

RECIPE_FILE = "recipe.toml"
PHASE_SECTIONS = ("sample", "rollout", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A validated recipe with the place it was read from."""

    values: RecipeModel
    directory: Path
    """Directory to which its paths are relative."""
    file: Path | None = None
    """The file, None for the defaults alone."""
    origins: Mapping[str, str]
    """`section.key` → `default`, `FILE:LINE` or `--set`."""
    written: Mapping[str, Any]
    """What file and `--set` say, merged, before defaults."""

    @property
    def digest(self) -> str:
        """sha256 of the resolved values."""
        return content_digest(self.values.model_dump(mode="json"))

    def phase(self, name: str | None = None) -> Phase | None:
        """The phase called `name`; without a name the last one, None where the recipe has no phases."""
        phases = self.values.phases
        if name is None:
            return phases[-1] if phases else None
        for phase in phases:
            if phase.name == name:
                return phase
        known = [phase.name for phase in phases]
        raise UsageError(
            f"no phase {name!r} in {self.file or 'the recipe'}", hint=f"known: {', '.join(known) or 'none'}"
        )

    def for_phase(self, name: str | None = None) -> RecipeModel:
        """The values that hold in a phase (the last one by default): its overrides merged into the sections."""
        phase = self.phase(name)
        return self.values if phase is None else _with_overrides(self.values, phase)

    def resolve(self, path: str) -> Path:
        """A path of the recipe, relative to its directory."""
        return self.directory / path


def _with_overrides(values: RecipeModel, phase: Phase) -> RecipeModel:
    sections: dict[str, Any] = values.model_dump()
    for section in PHASE_SECTIONS:
        sections[section] = {**sections[section], **getattr(phase, section)}
    return RecipeModel.model_validate(sections)


def find_recipe(path: Path) -> Path:
    """The file that a path means: itself, or `recipe.toml` in a directory. Raises InputNotFound."""
    file = path / RECIPE_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputNotFound(f"no recipe at {file}", hint="`ptctl init DIR` writes one to start from")
    return file


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file (or none: the defaults) and apply `section.key=value` overrides.

    Raises InputNotFound, or UsageError that lists every problem with its line.
    """
    file = None if path is None else find_recipe(path)
    text = "" if file is None else _read_text(file)
    label = str(file) if file is not None else "--set"
    try:
        written: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{label}: {error}", hint="the recipe is TOML") from error
    lines = key_lines(text)
    origins = {".".join(map(str, key)): f"{label}:{number}" for key, number in lines.items()}
    for override in overrides:
        key = _apply_override(written, override)
        origins[key] = "--set"
    values = _validate(written, lines, origins, label)
    directory = file.parent if file is not None else Path()
    return Recipe(values=values, directory=directory, file=file, origins=origins, written=written)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file} is not UTF-8: {error.reason} at byte {error.start}", hint="the recipe is TOML"
        ) from error


def _apply_override(written: dict[str, Any], override: str) -> str:
    key, equals, raw = override.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2:
        raise UsageError(
            f"--set {override!r} is not section.key=value", hint="for example --set train.learning_rate=1e-5"
        )
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw  # a bare word is a string, as in a shell
    _table_of(written, parts, override)[parts[-1]] = value
    _drop_phase_overrides(written, parts)
    return ".".join(parts)


def _table_of(written: dict[str, Any], parts: Sequence[str], override: str) -> dict[str, Any]:
    """The table that holds the key; `phases.0.train.epochs` goes into the first phase."""
    table: Any = written
    for part in parts[:-1]:
        if isinstance(table, list):
            entries = cast("list[Any]", table)
            if not part.isdigit() or int(part) >= len(entries):
                raise UsageError(f"--set {override!r}: there is no phase number {part!r}")
            table = entries[int(part)]
        else:
            table = cast("dict[str, Any]", table).setdefault(part, {})
        if not isinstance(table, dict | list):
            raise UsageError(f"--set {override!r}: {part!r} is not a section")
    if not isinstance(table, dict):
        raise UsageError(f"--set {override!r}: say which phase, as in phases.0.{parts[-1]}")
    return cast("dict[str, Any]", table)


def _drop_phase_overrides(written: dict[str, Any], parts: Sequence[str]) -> None:
    """`--set train.epochs=1` holds in every phase, also in one that overrides the key."""
    phases = written.get("phases")
    if len(parts) != 2 or parts[0] not in PHASE_SECTIONS or not isinstance(phases, list):
        return
    for phase in cast("list[Any]", phases):
        section = cast("dict[str, Any]", phase).get(parts[0]) if isinstance(phase, dict) else None
        if isinstance(section, dict):
            cast("dict[str, Any]", section).pop(parts[1], None)


def _validate(
    written: dict[str, Any], lines: dict[KeyPath, int], origins: Mapping[str, str], label: str
) -> RecipeModel:
    problems: list[str] = []
    values: RecipeModel | None = None
    try:
        values = RecipeModel.model_validate(written)
    except ValidationError as error:
        problems += [_describe(detail, lines, origins, label, ()) for detail in error.errors()]
    problems += _unknown_override_keys(written, lines, origins, label)
    if values is not None and not problems:
        problems += _phase_problems(values, lines, origins, label)
    if problems or values is None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise UsageError(f"{count} in {label}: " + "; ".join(problems), hint="docs/reference/recipe.md lists every key")
    return values


def _unknown_override_keys(
    written: Mapping[str, Any], lines: dict[KeyPath, int], origins: Mapping[str, str], label: str
) -> list[str]:
    """Unknown keys inside phases, looked for apart so that they are reported together with all the others."""
    problems: list[str] = []
    phases = written.get("phases")
    for index, phase in enumerate(cast("list[Any]", phases) if isinstance(phases, list) else []):
        for section in PHASE_SECTIONS:
            values = cast("dict[str, Any]", phase).get(section) if isinstance(phase, dict) else None
            known = _known_keys((section,))
            for key in cast("dict[str, Any]", values) if isinstance(values, dict) else {}:
                if key not in known:
                    detail = {"type": "extra_forbidden", "loc": (section, key), "msg": ""}
                    problems.append(_describe(detail, lines, origins, label, ("phases", index)))
    return problems


def _phase_problems(
    values: RecipeModel, lines: dict[KeyPath, int], origins: Mapping[str, str], label: str
) -> list[str]:
    problems: list[str] = []
    names = [phase.name for phase in values.phases]
    for index, phase in enumerate(values.phases):
        if names.index(phase.name) != index:
            problems.append(
                f"{_place(('phases', index, 'name'), lines, origins, label)}: phase {phase.name!r} stands twice"
            )
        try:
            resolved = _with_overrides(values, phase)
            if resolved.train.algorithm == "grpo":
                check_group_size(resolved.train.estimator, resolved.sample.group_size)
        except ValidationError as error:
            problems += [_describe(detail, lines, origins, label, ("phases", index)) for detail in error.errors()]
        except UsageError as error:
            problems.append(f"{_place(('phases', index), lines, origins, label)}: {error}")
    return problems


def _place(path: KeyPath, lines: dict[KeyPath, int], origins: Mapping[str, str], label: str) -> str:
    dotted = ".".join(map(str, path))
    if any(origin == "--set" and f"{key}.".startswith(f"{dotted}.") for key, origin in origins.items()):
        return "--set"
    number = line_of(lines, path)
    return f"{label}:{number}" if number is not None else label


def _describe(detail: Any, lines: dict[KeyPath, int], origins: Mapping[str, str], label: str, prefix: KeyPath) -> str:
    path: KeyPath = (*prefix, *detail["loc"])
    where = _place(path, lines, origins, label)
    dotted = ".".join(map(str, path))
    if detail["type"] != "extra_forbidden":
        return f"{where}: {dotted}: {detail['msg']}"
    known = _known_keys(path[:-1])
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
    guess = f", did you mean {near[0]!r}?" if near else f" (known: {', '.join(known)})"
    return f"{where}: unknown key {dotted!r}{guess}"


def _known_keys(path: KeyPath) -> list[str]:
    model: type[BaseModel] = RecipeModel
    for part in path:
        if isinstance(part, int):
            continue
        if part == "phases":
            model = Phase
            continue
        # Inside a phase, `train` means the keys of [train].
        annotation = RecipeModel.model_fields[part].annotation if part in RecipeModel.model_fields else None
        if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
            return []
        model = annotation
    return sorted(model.model_fields)


def section_keys() -> dict[str, dict[str, Any]]:
    """Section → key → (type, default, description), for the reference page."""
    sections: dict[str, dict[str, Any]] = {}
    for name, field in RecipeModel.model_fields.items():
        model = Phase if name == "phases" else cast("type[BaseModel]", field.annotation)
        sections[name] = dict(model.model_fields)
    return sections
