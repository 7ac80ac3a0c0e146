"""Importing the package of the backend `megatron` is light, and a missing dependency is a missing extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = """
import sys
import ptctl.backends.megatron, ptctl.backends.megatron.geometry
assert not {"torch", "megatron", "transformers", "safetensors"} & sys.modules.keys()
"""

MISSING = """
import sys
sys.modules["PACKAGE"] = None
from ptctl.errors import MissingExtra
try:
    from ptctl.backends.megatron import MegatronBackend
except MissingExtra as error:
    assert str(error) == "the backend megatron needs the package PACKAGE, which is not installed", error
    assert error.hint == "pip install 'ptctl[train]'"
else:
    raise AssertionError("imported")
"""


def run(program: str) -> None:
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr


def test_import_is_light() -> None:
    run(LIGHT)


@pytest.mark.parametrize("package", ["torch", "safetensors"])
def test_missing_package(package: str) -> None:
    run(MISSING.replace("PACKAGE", package))


def test_unknown_name() -> None:
    import ptctl.backends.megatron as package

    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = package.Other
