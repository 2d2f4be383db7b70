"""What people install: the wheel and the sdist are whole, and work far away from the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from tests.pages import blocks, pages_that_run, readme_commands

from fedsynth.cli.app import COMMANDS

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
    templates = {f"deploy/flower/templates/{name}" for name in ("site.toml", "app.toml", "nginx.conf")}
    for needed in {"py.typed", "evaluation/report.html.jinja", "evaluation/report.css", "publish/reader.R"} | templates:
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


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Return the folder of programs of a new environment with the wheel of the sdist and the extra demo."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    _run(programs / "pip", "install", "-c", HERE / "constraints.txt", f"{built[2]}[demo]", cwd=folder)
    where = _run(programs / "python", "-c", "import fedsynth; print(fedsynth.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(folder)
    return programs


def _follow(programs, commands, cwd, expected=0):
    """Give commands to a shell that finds the installed programs first and nothing of the repository."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=cwd,
        env={
            **clean,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "EXAMPLES": str(programs.parent.parent / "examples"),
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == expected, f"{commands}\n{done.stdout}{done.stderr}"


def test_the_wheel_of_the_sdist_runs_the_demo(built, installed, tmp_path):
    assert _run(installed / "fedsynth", "--version", cwd=tmp_path).split()[-1] == built[0]
    assert "oneshot" in _run(installed / "fedsynth", "methods", cwd=tmp_path)
    said = _run(installed / "fedsynth", "demo", "--out", "run", cwd=tmp_path)
    assert "how good it is" in said
    assert {"synthetic.csv", "private", "model.fedsynth", "ledger.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert (tmp_path / "run" / "private" / "report.html").is_file()


def test_the_readme_works_in_an_empty_folder(installed, tmp_path):
    _follow(installed, "\n".join(readme_commands()), tmp_path)
    assert (tmp_path / "run" / "private" / "report.html").exists()
    (code,) = (block.text for block in blocks("README.md") if block.kind == "python")
    _run(installed / "python", "-c", code, cwd=tmp_path)
    assert {"synthetic.csv", "report.html"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("page", pages_that_run())
def test_a_page_works_in_an_empty_folder(installed, page, tmp_path):
    """What the page shows in whole, its reader has saved: examples lie in a folder that a hidden block copies from."""
    saved = installed.parent.parent / "examples"
    if not saved.exists():
        shutil.copytree(HERE / "examples", saved)
    shown = [block for block in blocks(page) if block.options.get("tags") != "[remove-input]"]
    for block in shown:
        if block.kind == "{run}":
            _follow(installed, block.text, tmp_path, int(block.options.get("exit", 0)))
    cells = "\n".join(block.text for block in shown if block.kind == "{code-cell}")
    _follow(installed, f"python - <<'END OF CELLS'\n{cells}\nEND OF CELLS", tmp_path)


BUDGET = "--epsilon 1 --delta 1e-6"
RUN = f"--schema schema.toml --sites 2 --method oneshot {BUDGET}"
PLAIN = [
    ("example", "patients.csv", 0),
    ("schema draft", "patients.csv --out schema.toml", 0),
    ("schema check", "patients.csv --schema schema.toml", 0),
    ("schema draft", "patients.csv --outline --out outline.toml", 0),
    ("schema merge", "schema.toml outline.toml --out merged.toml", 3),
    ("simulate", f"--data patients.csv {RUN} --out run", 0),
    ("demo", "--out demo", 6),
    ("evaluate", "patients.csv run/synthetic.csv --schema schema.toml --holdout patients.csv --out scores", 6),
    ("augment", "patients.csv run/synthetic.csv --schema schema.toml --target readmitted --out augmented", 6),
    ("report", "run", 6),
    ("answers", "run readmitted=yes", 0),
    ("sample", "run/model.fedsynth --rows 10 --out more.csv", 0),
    ("publish", "run --to pack --title Stays --publisher Office --licence CC-BY-4.0", 8),  # its schema is a draft
    ("verify", "run", 0),
    ("methods", "", 0),
    ("advise", f"--schema schema.toml --rows 1000 --sites 2 {BUDGET}", 0),
    ("plan", f"--rows 1000 {RUN}", 0),
    ("compare", f"--data patients.csv {RUN}", 6),
    ("bench", "bench.toml --list", 0),
    ("deploy init", f"federation --schema schema.toml --sites north --method oneshot --trust local {BUDGET} --json", 0),
    ("site adapt", "patients.csv --schema schema.toml --out north.toml", 0),
    ("site join", "federation/invitations/north.toml site --fingerprint FINGERPRINT-1 --json", 0),
    ("deploy admit", "federation site/north.request --fingerprint FINGERPRINT-1 --json", 0),
    ("deploy try", "federation --data patients.csv --out rehearsal", 6),
    ("deploy serve", "federation", 6),
    ("deploy run", "federation", 6),
    ("deploy status", "federation", 8),
    ("deploy stop", "federation", 8),
    ("site check", "site", 8),
    ("site serve", "site", 6),
    ("account", "site", 0),
    ("backup", "site site.backup", 0),
    ("restore", "site.backup restored", 0),
    *(("compute-server init", f"server-{number} --address localhost:{number} --json", 0) for number in (1, 2, 3)),
    (
        "compute-server agree",
        "server-1 server-1/card.toml server-2/card.toml server-3/card.toml --fingerprint FINGERPRINT-3 --fingerprint "
        "FINGERPRINT-2 --fingerprint FINGERPRINT-1",
        0,
    ),
    ("compute-server serve", "server-1", 8),  # it has no terms yet, and loads nothing before that
]
"""Every command with arguments that lead it to what it needs, in an order that makes their files, and its exit code."""


def _leaves(listed, *before):
    for commands in listed.values():
        for name, (inner, _) in commands.items():
            yield from [" ".join([*before, name])] if isinstance(inner, str) else _leaves(inner, *before, name)


def test_without_any_extra_every_command_starts_or_names_the_missing_one(built, tmp_path):
    """None ends with a traceback: what is not installed is a sentence with the extra, and exit code 6.

    Here the sdist itself is installed; the wheel is in the other tests.
    """
    assert {name for name, *_ in PLAIN} == set(_leaves(COMMANDS))
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    _run(programs / "pip", "install", "-c", HERE / "constraints.txt", built[1], cwd=tmp_path)  # pip builds the sdist
    assert _run(programs / "fedsynth", "--version", cwd=tmp_path).split()[-1] == built[0]
    shutil.copy(HERE / "examples" / "mine.toml", tmp_path / "bench.toml")
    _every_command_starts([programs / "fedsynth"], tmp_path)


def _every_command_starts(program, folder):
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    fingerprints: list[str] = []
    for name, arguments, code in PLAIN:
        marked = (word.rpartition("FINGERPRINT-") for word in arguments.split())
        words = [fingerprints[-int(word)] if mark else word for _, mark, word in marked]
        done = subprocess.run(
            [*program, *name.split(), *words],
            cwd=folder,
            env={**clean, "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
        said = f"{name}: {done.stdout}{done.stderr}"
        assert done.returncode == code, said
        assert "Traceback" not in said
        assert code != 6 or "; pip install 'fedsynth[" in done.stderr, said
        fingerprints += re.findall(r'"fingerprint": ?"([^"]+)"', done.stdout)
