"""The commands of README, tutorials and how-to guides, run as they stand, in a scratch checkout.

The quickstart is run once for all documents (what `make demo` runs), and every document gets a copy of the finished
run. Packages that a guide writes are installed without pip, so that no network and no build backend is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from documents import ROOT, Block, blocks, runnable_documents

DEMO = "ptctl run recipes/quickstart -o runs/quickstart"
TIMEOUT_S = 600


def needs_demo(document: Path) -> bool:
    return any("runs/quickstart" in block.text or block.run == "demo" for block in blocks(document))


def cases() -> list[object]:
    found: list[object] = []
    for document in runnable_documents():
        marks = [pytest.mark.slow] if needs_demo(document) else []
        found.append(pytest.param(document, marks=marks, id=str(document.relative_to(ROOT))))
    return found


def environment(scratch: Path) -> dict[str, str]:
    """That of a person who has activated the virtual environment and the installed packages of the scratch checkout."""
    packages = [str(scratch / "site"), *(str(path.parent) for path in scratch.glob("*/pyproject.toml"))]
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(scratch),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(packages),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def shell(script: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=scratch, env=environment(scratch), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def checkout(scratch: Path) -> Path:
    """What a document may name: recipes and documents, no runs."""
    scratch.mkdir()
    for name in ("recipes", "docs"):
        shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    return scratch


def install(project: Path, scratch: Path) -> None:
    """What `pip install -e PROJECT` leaves behind, as far as entry points are concerned."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = scratch / "site" / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in points.items())])
        for group, points in about["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(sections) + "\n")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the finished quickstart."""
    scratch = checkout(tmp_path_factory.mktemp("demo") / "ptctl")
    done = shell(DEMO, scratch)
    assert done.returncode == 0, done.stderr
    return scratch


def run_block(block: Block, scratch: Path) -> None:
    word, _, rest = block.run.partition(" ")
    if word == "install":
        install(scratch / rest, scratch)
    elif word not in ("demo", "skip"):
        expected = int(rest) if word == "exit" else 0
        done = shell(block.text, scratch)
        told = f"{block.place}\n{block.text}\nstatus {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == expected, told


@pytest.mark.parametrize("document", cases())
def test_the_commands_work(document: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    scratch = checkout(tmp_path / "ptctl")
    if needs_demo(document):
        shutil.copytree(request.getfixturevalue("demo") / "runs", scratch / "runs")
    for block in blocks(document):
        if block.file:
            (scratch / block.file).parent.mkdir(parents=True, exist_ok=True)
            (scratch / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            run_block(block, scratch)


def test_make_demo_runs_what_stands_for_it() -> None:
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    recipe = lines[next(index for index, line in enumerate(lines) if line.startswith("demo:")) + 1]
    assert recipe.endswith(DEMO)


def test_a_fresh_recipe_is_the_quickstart(tmp_path: Path) -> None:
    scratch = checkout(tmp_path / "ptctl")
    done = shell("ptctl init my-recipe", scratch)
    assert (done.returncode, done.stdout) == (0, "my-recipe\n")
    ours, theirs = ROOT / "recipes" / "quickstart", scratch / "my-recipe"
    files = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()} == files
    assert all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in files)
