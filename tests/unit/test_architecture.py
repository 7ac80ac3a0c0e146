"""Budgets, directions and names of the code, as failing tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for path in (ROOT / "src" / "ptctl").rglob("*.py"))
MAX_FUNCTION_LINES = 50
MAX_FILE_LINES = 400
FORBIDDEN_NAMES = {"utils", "common", "core", "base", "helpers", "manager", "misc"}


@pytest.mark.parametrize(
    "path", [*SOURCES, *sorted((ROOT / "recipes").rglob("*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_budgets(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= MAX_FUNCTION_LINES, node.name


def test_no_drawers() -> None:
    assert not [path for path in SOURCES if path.stem in FORBIDDEN_NAMES]
    assert not [path for path in (ROOT / "src" / "ptctl").rglob("*") if path.is_dir() and path.name in FORBIDDEN_NAMES]


def test_directions() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_light_imports_stay_light() -> None:
    """No heavy library at import time but in engines and backends, and neither numpy nor pyarrow for --help."""
    probe = (
        "import sys, importlib, pkgutil, ptctl\n"
        "for m in pkgutil.walk_packages(ptctl.__path__, 'ptctl.'):\n"
        "    left_out = ('engines', 'backends', 'testing', '__main__', 'verifiers.test_box')\n"
        "    if not m.name.removeprefix('ptctl.').startswith(left_out):\n"
        "        importlib.import_module(m.name)\n"
        "print(sorted({'torch', 'transformers', 'megatron', 'sglang', 'safetensors'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    probe = (
        "import sys\nsys.argv = ['ptctl', 'eval', '--help']\nfrom ptctl.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'pyarrow', 'duckdb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
