"""What is installed from a wheel or an sdist is the whole package, and works where no checkout is."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUB_PACKAGES = ("envs", "hardware", "baselines")

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout"),
]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # The checkout must not leak into what is tested.
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    finished = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it, both from a fresh clone as git stores it."""
    folder = tmp_path_factory.mktemp("dist")
    checkout = copy_of_tracked_files(tmp_path_factory.mktemp("clone"))
    run(sys.executable, "-m", "build", "--outdir", folder, checkout, cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def copy_of_tracked_files(target: Path) -> Path:
    """The working tree as a commit of it would be: symlinks stay symlinks, ignored files stay behind."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, target / name
        if not source.is_symlink() and not source.exists():
            continue  # deleted, but not yet so in the index
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(os.readlink(source))
        else:
            copy.write_bytes(source.read_bytes())
    return target


def expected_files() -> set[str]:
    """Every module and data file of the package, by its path inside ``solgym``."""
    files = {"py.typed"}
    for folder, prefix in ((ROOT / "solgym", ""), *((ROOT / name, f"{name}/") for name in SUB_PACKAGES)):
        for path in folder.rglob("*"):
            relative = path.relative_to(folder)
            if path.suffix in (".py", ".json") and relative.parts[0] not in SUB_PACKAGES:
                files.add(prefix + relative.as_posix())
    return files


def test_the_sub_packages_are_those_that_the_checkout_links():
    links = {path.name for path in (ROOT / "solgym").iterdir() if path.is_symlink()}
    assert links >= set(SUB_PACKAGES)


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else_at_its_top(distributions):
    names = zipfile.ZipFile(distributions[1]).namelist()
    inside = {name.removeprefix("solgym/") for name in names if name.startswith("solgym/")}
    assert inside >= expected_files()
    assert {name.split("/")[0] for name in names} == {"solgym", f"solgym-{_version()}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_every_module_and_data_file_as_real_files(distributions):
    with tarfile.open(distributions[0]) as archive:
        members = {
            member.name.split("/", 1)[1]: member for member in archive.getmembers() if "/" in member.name
        }
    assert set(members) >= {f"solgym/{name}" for name in expected_files()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert {"LICENSE", "README.md", "pyproject.toml"} <= set(members)


def test_the_wheel_tunes_in_a_clean_environment(distributions, tmp_path):
    environment = tmp_path / "venv"
    venv.EnvBuilder(with_pip=True).create(environment)
    python, solgym = environment / "bin" / "python", environment / "bin" / "solgym"
    constraints = ROOT / "constraints.txt"
    run(
        python, "-m", "pip", "install", "--quiet", "--constraint", constraints, distributions[1], cwd=tmp_path
    )
    assert "KernelDSL-GEMM-v0" in run(solgym, "list", cwd=tmp_path).stdout
    out = tmp_path / "run"
    run(
        solgym, "tune", "KernelDSL-GEMM-v0", "--task", "gemm/f32/m64n64k64", "--budget", "5", "--out", out,
        cwd=tmp_path,
    )  # fmt: skip
    assert {"trace.jsonl", "report.json", "progress.png", "roofline.png"} <= {
        path.name for path in out.iterdir()
    }
    assert json.loads((out / "report.json").read_text())["trials"] == 5
    where = run(python, "-c", "import solgym.hardware.jit as m; print(m.__file__)", cwd=tmp_path).stdout
    assert str(environment) in where


def _version() -> str:
    import solgym

    return solgym.__version__
