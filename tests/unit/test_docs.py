"""The documents say what the code does: nothing is missing, nothing is stale, no link is dead."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from documents import ROOT, SHELL, blocks, commands, markdown_files, runnable_documents
from ptctl import registry
from ptctl.cli.main import COMMANDS, app
from ptctl.errors import EXIT_CODE_MEANING
from ptctl.recipe.load import section_keys
from ptctl.records import ROW_TYPES
from ptctl.shards.schema import column_types
from ptctl.stages import evaluate
from ptctl.testing.factories import make_simple_task, write_batch

REFERENCE = ROOT / "docs" / "reference"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Heading of the second level → what stands below it."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def subcommands() -> Iterator[tuple[str, Any]]:
    yield "ptctl", typer.main.get_command(app)
    for name, (module, _) in COMMANDS.items():
        command: Any = typer.main.get_command(importlib.import_module(module).app)
        yield f"ptctl {name}", command
        for inner, nested in getattr(command, "commands", {}).items():
            yield f"ptctl {name} {inner}", nested


@pytest.fixture(scope="module")
def build_reference() -> Any:
    spec = importlib.util.spec_from_file_location("build_reference", ROOT / "docs" / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "command"), list(subcommands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_and_every_flag_is_documented_and_has_help(name: str, command: Any) -> None:
    section = sections(page("cli.md"))[name]
    assert command.help
    assert " ".join(command.help.split()).split(". ")[0] in " ".join(section.split())
    for param in command.params:
        if param.opts[0] in ("--install-completion", "--show-completion") and name != "ptctl":
            continue  # the root's; documented there
        assert param.help, param.name
        for flag in param.opts if param.param_type_name == "option" else [param.metavar.replace("|", "\\|")]:
            assert re.search(rf"`[^`]*{re.escape(flag)}(?![\w-])", section), flag


def test_every_recipe_key_is_documented() -> None:
    found = sections(page("recipe.md"))
    for section, keys in section_keys().items():
        text = found[f"[[{section}]]" if section == "phases" else f"[{section}]"]
        for key, field in keys.items():
            assert f"| `{key}` |" in text, f"{section}.{key}"
            assert field.description


def test_every_column_is_documented() -> None:
    found = {heading.split(":")[0]: text for heading, text in sections(page("schemas.md")).items()}
    waiting, seen = list(ROW_TYPES.values()), set[type]()
    while waiting:
        row_type = waiting.pop()
        for name, column in column_types(row_type).items():
            row = re.search(rf"^\| `{name}` \|.*\| (.+) \|$", found[row_type.__name__], re.MULTILINE)
            assert row is not None, f"{row_type.__name__}.{name}"
            if column.row_type is not None and column.row_type not in seen:
                seen.add(column.row_type)
                waiting.append(column.row_type)


def test_every_exit_code_is_documented() -> None:
    for code, meaning in EXIT_CODE_MEANING.items():
        assert f"| {code.value} | {code.name} | {meaning} |" in page("exit-codes.md")


def test_every_plug_in_is_documented() -> None:
    for group in registry.GROUPS:
        for name in registry.names(group):
            assert f"| `ptctl.{group}` | `{name}` |" in page("plugins.md")


def test_every_key_of_eval_json_is_documented(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{number}") for number in range(9)]
    rewards = {task.task_id: [1.0, None] for task in tasks}
    sides = [write_batch(tmp_path / name, tasks, rewards).scores for name in ("a", "b")]
    gate = tmp_path / "gate.toml"
    gate.write_text("margin = 0.1\n")
    from ptctl.evaluation.gate import load_gate

    options = evaluate.EvaluateOptions(scores=sides[0], baseline=sides[1], gate=load_gate(gate))
    report = json.loads(json.dumps(evaluate.run(options).to_json()))
    text = page("eval-json.md")
    free = {"tool_calls", "stop_reasons", "unscored", "judged_by", "sampling", "settings"}  # keys of theirs are data

    def check(value: Any) -> None:
        for key, part in value.items() if isinstance(value, dict) else ():
            assert f"`{key}`" in text, key
            if key not in free:
                check(part)
        for part in value if isinstance(value, list) else ():
            check(part)

    check(report)
    for key in report["gate"]["settings"]:
        assert f"\n{key} = " in text


def test_generated_pages_are_up_to_date(build_reference: Any) -> None:
    stale = [path.name for path, _, _ in build_reference.stale_pages(REFERENCE)]
    assert not stale, "run `make docs`"


def test_a_stale_page_is_shown_and_mended(
    build_reference: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("exit-codes.md", "recipe.md"):
        shutil.copy(REFERENCE / name, tmp_path)
    changed = tmp_path / "exit-codes.md"
    changed.write_text(changed.read_text().replace("the gate found a regression", "all is well"))
    assert build_reference.main(["--check"], tmp_path) == 1
    shown = capsys.readouterr().out
    assert "-| 10 | REGRESSED | all is well |" in shown
    assert "+| 10 | REGRESSED | the gate found a regression |" in shown
    assert "recipe.md" not in shown
    assert build_reference.main([], tmp_path) == 0
    assert changed.read_text() == page("exit-codes.md")
    assert build_reference.main(["--check"], tmp_path) == 0


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("document", markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        if path.name != "README.md":
            assert f"({path.relative_to(ROOT / 'docs')})" in index


def test_commands_stand_in_blocks_that_are_run() -> None:
    """No other shell languages, and skipped blocks only fetch."""
    for document in markdown_files():
        for block in blocks(document):
            assert block.language not in ("sh", "shell", "console", "shell-session"), block.place
            assert block.language != "" or not block.text.lstrip().startswith(("ptctl ", "$ ")), block.place
    for document in runnable_documents():
        for block in commands(document):
            if block.run.startswith("skip"):
                assert all(line.startswith(("git clone ", "pip install ")) for line in block.text.splitlines())
            if block.run == "demo":
                assert block.text.strip() in (
                    "make demo",
                    "ptctl run recipes/quickstart -o runs/quickstart",
                    "ptctl run my-recipe -o runs/first",  # a copy of the quickstart, see the e2e tests
                )


def test_the_picture_fits_a_terminal() -> None:
    picture = next(block for block in blocks(ROOT / "README.md") if block.language == "text")
    assert all(word in picture.text for word in ("sample", "rollout", "score", "train", "eval"))
    assert max(len(line) for line in picture.text.splitlines()) <= 80


def test_shell_is_bash() -> None:
    assert SHELL == "bash"
