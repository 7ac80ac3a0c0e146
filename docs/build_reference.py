"""Write the generated parts of docs/reference from the code, or say that they are stale.

    python docs/build_reference.py            write them
    python docs/build_reference.py --check    print what differs and leave with status 1

A page is prose with regions: what stands between `<!-- begin generated: NAME -->` and `<!-- end generated -->` is made
here, the rest by hand. So a flag, a recipe key, a column or an exit code has one description, in the code.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from pydantic_core import PydanticUndefined

from ptctl import advantages, errors, protocols, records, registry, token_weights
from ptctl.cli.main import COMMANDS, app
from ptctl.environments import tool_kinds
from ptctl.evaluation import gate, report
from ptctl.recipe.load import section_keys
from ptctl.recipe.model import Phase, RecipeModel
from ptctl.shards.schema import column_types

REFERENCE = Path(__file__).parent / "reference"
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
REGION = re.compile(r"(<!-- begin generated: ([a-z-]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)
COMPLETION_FLAGS = ("--install-completion", "--show-completion")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + "\n"


# ── attribute docstrings, which no interpreter keeps ─────────────────────────────────────────────────────────────────


def _sentence(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return None


def _described(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str, str, str]]:
    """Name, annotation, default and docstring of each attribute of a class or module body."""
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = "" if statement.value is None else ast.unparse(statement.value)
            yield statement.target.id, ast.unparse(statement.annotation), default, _sentence(following) or ""
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, "", ast.unparse(statement.value), _sentence(following) or ""


def _class_body(cls: type) -> list[ast.stmt]:
    parsed = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]
    assert isinstance(parsed, ast.ClassDef)
    return parsed.body


def _classes(module: types.ModuleType) -> list[type]:
    """Public classes of a module, or of the modules of a package, in the order of the source."""
    if hasattr(module, "__path__"):
        parts = [
            importlib.import_module(f"{module.__name__}.{part.name}") for part in pkgutil.iter_modules(module.__path__)
        ]
        return [cls for part in parts for cls in _classes(part)]
    found = [cls for name, cls in vars(module).items() if isinstance(cls, type) and not name.startswith("_")]
    return [cls for cls in found if cls.__module__ == module.__name__]


def _constant(module: types.ModuleType, name: str) -> str:
    """The docstring that stands below a constant."""
    body = ast.parse(inspect.getsource(module)).body
    return next(text for constant, _, _, text in _described(body) if constant == name and text)


# ── regions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _commands() -> str:
    root = typer.main.get_command(app)
    parts = [_command("ptctl", root)]
    for name, (module, _) in COMMANDS.items():
        command: Any = typer.main.get_command(importlib.import_module(module).app)
        parts.append(_command(f"ptctl {name}", command))
        for inner, nested in getattr(command, "commands", {}).items():
            parts.append(_command(f"ptctl {name} {inner}", nested))
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    # typer's wrapper keeps the function, whose annotations say what a value is.
    hints = typing.get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
    is_root = name == "ptctl"
    params = [param for param in command.params if is_root or param.opts[0] not in COMPLETION_FLAGS]
    arguments = [[_code(param.metavar), _cell(param.help)] for param in params if param.param_type_name == "argument"]
    options = [_option(param, hints) for param in params if param.param_type_name == "option"]
    options.append([_code("-h, --help" if is_root else "--help, -h"), "", "", "Show the help and exit."])
    parts = [f"## {name}\n", inspect.cleandoc(command.help) + "\n"]
    if arguments:
        parts.append(_table(["argument", "meaning"], arguments))
    parts.append(_table(["option", "value", "default", "meaning"], options))
    return "\n".join(parts)


def _option(param: Any, hints: dict[str, Any]) -> list[str]:
    flags = ", ".join([*param.opts, *param.secondary_opts])
    value = "" if param.is_flag else param.metavar or _value(hints[param.name])
    default = "**required**" if param.required else ""
    if not param.required and param.default not in (None, False):
        default = _code(str(getattr(param.default, "value", param.default)))
    return [_code(flags), _code(value), default, _cell(param.help or "")]


def _value(annotation: Any) -> str:
    """What stands for a value whose option names none: `INTEGER`, or the values of an enumeration."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = typing.get_args(annotation)[0]
    if issubclass(annotation, StrEnum):
        return "|".join(annotation)
    return {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}[annotation]


def _recipe_keys() -> str:
    parts: list[str] = []
    for section, keys in section_keys().items():
        model = Phase if section == "phases" else RecipeModel.model_fields[section].annotation
        header = f"[[{section}]]" if section == "phases" else f"[{section}]"
        rows = [
            [_code(key), _code(_recipe_type(field)), _recipe_default(field), _cell(field.description or "")]
            for key, field in keys.items()
        ]
        parts += [f"## {header}\n", f"{inspect.getdoc(model)}\n", _table(["key", "type", "default", "meaning"], rows)]
    return "\n".join(parts)


def _recipe_type(field: Any) -> str:
    annotation, suffix = field.annotation, ""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f'"{value}"' for value in typing.get_args(annotation))
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in signs.items()
        if getattr(bound, name, None) is not None
    ]
    suffix = f" {', '.join(bounds)}" if bounds else ""
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", list[str]: "list of strings"}
    return plain.get(annotation, "table") + suffix


def _recipe_default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "**required**"
    if field.default is None:
        return "not set"
    return _code(repr(field.default).replace("'", '"').replace("True", "true").replace("False", "false"))


def _rows() -> str:
    nested = [cls for cls in _classes(records) if cls not in records.ROW_TYPES.values()]
    parts = [
        _row_type(cls, f"{cls.__name__}: a row of `{kind}`", is_column=True) for kind, cls in records.ROW_TYPES.items()
    ]
    for cls in nested:
        parts.append(_values(cls) if issubclass(cls, StrEnum) else _row_type(cls, cls.__name__, is_column=True))
    return "\n".join(parts)


def _row_type(cls: type, title: str, *, is_column: bool) -> str:
    arrow = column_types(cls) if is_column else {}
    rows = [
        [
            _code(name),
            _code(annotation.replace(" | None", "")),
            *([_column(arrow[name].arrow, arrow[name].nullable)] if is_column else []),
            _cell(text),
        ]
        for name, annotation, _, text in _described(_class_body(cls))
    ]
    header = ["field", "type", *(["column"] if is_column else []), "meaning"]
    return f"## {title}\n\n{inspect.getdoc(cls)}\n\n{_table(header, rows)}"


def _column(arrow: Any, nullable: bool) -> str:
    text = str(arrow)
    if "struct<" in text:
        text = "list of structs" if text.startswith("list<") else "struct"
    text = re.sub(r"element: (\w+) not null", r"\1", text)
    return _code(text) + ("" if nullable else " not null")


def _values(cls: type[StrEnum]) -> str:
    values = ", ".join(_code(value) for value in cls)
    return f"## {cls.__name__}\n\n{inspect.getdoc(cls)}\n\n{values}\n"


def _exit_codes() -> str:
    raised: dict[int, list[str]] = {}
    for cls in _classes(errors):
        if issubclass(cls, errors.PtctlError) and cls not in (errors.PtctlError, errors.RowFailure):
            raised.setdefault(cls.exit_code, []).append(f"`{cls.__name__}`")
    rows = [
        [str(code.value), code.name, _cell(meaning), ", ".join(raised.get(code, []))]
        for code, meaning in errors.EXIT_CODE_MEANING.items()
    ]
    return _table(["code", "name", "meaning", "raised as"], rows)


def _error_tree() -> str:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    return f"```text\n{inspect.cleandoc(tree)}\n```\n"


def _constant_text(module: types.ModuleType, name: str) -> Callable[[], str]:
    return lambda: f"```text\n{_constant(module, name)}\n```\n"


def _report() -> str:
    parts = [_row_type(cls, cls.__name__, is_column=False) for cls in _classes(report) if not issubclass(cls, StrEnum)]
    parts = [part for part in parts if not part.startswith("## Report\n")]
    parts += [_values(cls) for cls in _classes(report) if issubclass(cls, StrEnum)]
    return "\n".join(parts)


def _gate_keys() -> str:
    return f"```text\n{inspect.cleandoc((gate.__doc__ or '').split(chr(10) * 2)[1])}\n```\n"


def _groups() -> str:
    shipped = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    rows = [
        [_code(f"ptctl.{group}"), _code(name), _code(target)]
        for group in registry.GROUPS
        for name, target in shipped[f"ptctl.{group}"].items()
    ]
    return _table(["entry-point group", "name", "class"], rows)


def _protocols() -> str:
    """As source: comments there give the shapes of arrays."""
    parts = [
        f"## {cls.__name__}\n\n```python\n{inspect.cleandoc(inspect.getsource(cls))}\n```\n"
        for cls in [*_classes(protocols), tool_kinds.ToolKind]
    ]
    return "\n".join(parts)


REGIONS: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "recipe-keys": _recipe_keys,
    "estimators": _constant_text(advantages, "Estimator"),
    "normalisations": _constant_text(token_weights, "Normalisation"),
    "rows": _rows,
    "exit-codes": _exit_codes,
    "error-tree": _error_tree,
    "report": _report,
    "gate-keys": _gate_keys,
    "groups": _groups,
    "protocols": _protocols,
}


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rendered(text: str) -> str:
    """A page with its regions made anew. Raises KeyError for a region that nothing makes."""
    return REGION.sub(lambda region: f"{region[1]}\n{REGIONS[region[2]]()}\n{region[3]}", text)


def stale_pages(directory: Path) -> Iterator[tuple[Path, str, str]]:
    """Pages of `directory` that differ from the code: path, what stands there, what should."""
    for path in sorted(directory.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = rendered(before)
        if before != after:
            yield path, before, after


def main(arguments: Sequence[str] | None = None, directory: Path = REFERENCE) -> int:
    """Write the pages, or with `--check` print the differences; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generated parts of docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page is stale")
    options = parser.parse_args(arguments)
    found = list(stale_pages(directory))
    for path, before, after in found:
        if options.check:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), "the code", lineterm="")
            print("\n".join(lines))
        else:
            path.write_text(after, encoding="utf-8")
            print(path)
    if options.check and found:
        print(f"{len(found)} stale: run `make docs`", file=sys.stderr)
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
