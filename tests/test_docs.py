"""The documentation is true where a machine can tell: its links lead somewhere, its examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from solgym.envs.registration import environments

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_every_page_can_be_reached_from_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    others = [page.name for page in PAGES[1:] if page.name != "index.md"]
    assert [name for name in others if f"({name})" not in index] == []


@pytest.mark.parametrize(
    ("page", "family"), [("README.md", "KernelDSL"), ("docs/mlir_passes.md", "MLIRPasses")]
)
def test_every_environment_is_listed(page, family):
    text = (ROOT / page).read_text()
    assert [e.id for e in environments() if e.family == family and f"`{e.id}`" not in text] == []


def test_the_code_in_the_readme_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # A small task of the same environment: what is tested is the interface.
    small = code.replace(
        '"KernelDSL-GEMM-v0")', '"KernelDSL-GEMM-v0", task="gemm/f32/m32n32k32", max_steps=4)'
    )
    assert small != code
    subprocess.run([sys.executable, "-c", small], cwd=tmp_path, check=True, timeout=120)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_compile(example):
    compile(example.read_text(), str(example), "exec")
