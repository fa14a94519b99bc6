import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import solgym

FOLDERS = ("envs", "hardware", "baselines", "surrogates", "leaderboards")
HEAVY = (
    "torch",
    "stable_baselines3",
    "matplotlib",
    "pydantic",
    "llvmlite",
    "torch_mlir",
    "rich",
    "typer",
    "multiprocessing.managers",
)


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_solgym_registers_the_environments_and_loads_nothing_heavy():
    code = (
        "import sys, json, solgym, gymnasium;"
        "ids = [i for i in gymnasium.registry if i.startswith('KernelDSL-')];"
        f"print(json.dumps([ids, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    ids, heavy = json.loads(python(code))
    assert "KernelDSL-GEMM-v0" in ids
    assert len(ids) == 15
    assert heavy == []


def test_every_public_name_can_be_had():
    for name in solgym.__all__:
        assert getattr(solgym, name) is not None
        assert name in dir(solgym)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = solgym.nothing_of_the_kind


def test_the_version_is_that_of_the_installed_package():
    assert version("solgym") == solgym.__version__


def test_the_folders_are_no_packages_of_their_own():
    """Away from the checkout, only ``solgym`` can be imported, not ``envs`` or ``hardware``."""
    code = (
        "import importlib.util, os, sys; os.chdir('/'); sys.path = [p for p in sys.path if p];"
        f"print([n for n in {FOLDERS!r} if importlib.util.find_spec(n)])"
    )
    assert python(code).strip() == "[]"
