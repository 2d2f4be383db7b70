"""What people install: the wheel and the sdist are whole, and work far away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent.parent
SOURCES = {
    path.relative_to(HERE / "src").as_posix()
    for path in (HERE / "src" / "fedsynth").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


def _run(*command, cwd):
    """Return what a command prints, run without the repository on its path."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(one) for one in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(archive):
    """Return the files of a wheel or an sdist; those of an sdist without the folder that they are all in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            return set(file.namelist())
    with tarfile.open(archive) as file:
        return {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the version, an sdist, the wheel made from it, and the wheel made from the repository."""
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree")
    for name in ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"):
        shutil.copy(HERE / name, tree)
    left = shutil.ignore_patterns("*.egg-info", "__pycache__", "node_modules")
    for name in ("src", "tests"):  # a copy: what earlier builds left beside the sources would be built in
        shutil.copytree(HERE / name, tree / name, ignore=left)
    _run(sys.executable, "-m", "build", "--outdir", folder / "both", tree, cwd=folder)
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "wheel", tree, cwd=folder)
    version = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]
    wheel = f"fedsynth-{version}-py3-none-any.whl"
    assert sorted(path.name for path in (folder / "both").iterdir()) == [wheel, f"fedsynth-{version}.tar.gz"]
    return version, folder / "both" / f"fedsynth-{version}.tar.gz", folder / "both" / wheel, folder / "wheel" / wheel


def test_a_wheel_holds_the_package_and_nothing_else(built):
    version, _, *wheels = built
    for wheel in wheels:
        files = {name for name in _files(wheel) if not name.startswith(f"fedsynth-{version}.dist-info/")}
        assert files == SOURCES
    templates = {f"transports/flower/templates/{name}" for name in ("site.toml", "app.toml", "nginx.conf")}
    for needed in {"py.typed", "evaluation/report.html.jinja", "evaluation/report.css"} | templates:
        assert f"fedsynth/{needed}" in SOURCES


def test_the_sdist_holds_the_sources_and_what_builds_them(built):
    files = _files(built[1])
    assert {name.removeprefix("src/") for name in files if name.startswith("src/fedsynth/")} == SOURCES
    assert {name for name in files if not name.startswith(("src/fedsynth/", "src/fedsynth.egg-info/"))} == {
        "LICENSE",
        "MANIFEST.in",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
        "setup.cfg",
    }


def test_the_wheel_of_the_sdist_runs_the_demo(built, tmp_path):
    version, _, wheel, _ = built
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    _run(programs / "pip", "install", "-c", HERE / "constraints.txt", f"{wheel}[demo]", cwd=tmp_path)
    where = _run(programs / "python", "-c", "import fedsynth; print(fedsynth.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert _run(programs / "fedsynth", "--version", cwd=tmp_path).split()[-1] == version
    assert "oneshot" in _run(programs / "fedsynth", "methods", cwd=tmp_path)
    said = _run(programs / "fedsynth", "demo", "--out", "run", cwd=tmp_path)
    assert "how good it is" in said
    assert {"synthetic.csv", "report.html", "model.fedsynth", "ledger.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
