"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from importlib import metadata

import pandas as pd
import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from tests.cli.golden.make import call
from tests.pages import ROOT, blocks, pages_that_run, readme_commands

import fedsynth
from fedsynth.datasets import patients


def test_the_commands_make_a_table_in_an_empty_folder(tmp_path):
    *commands, last = readme_commands()
    assert last == "fedsynth report run"  # which takes long: tests/test_packaging.py gives it too
    for command in commands:
        code, _, complaints = call(tmp_path, command.removeprefix("fedsynth "))
        assert code == 0, f"{command}: {complaints}"
    assert (tmp_path / "run" / "synthetic.csv").exists()


def test_pinned_versions_take_every_python_that_the_project_takes():
    """3.11.2 is the Python of Debian 12."""
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    looked_at = 0
    for found in metadata.distributions():
        if pinned.get(canonicalize_name(found.name)) == found.version:
            looked_at += 1
            needs = SpecifierSet(str(found.metadata.json.get("requires_python") or ""))
            assert all(needs.contains(version) for version in ("3.11.2", "3.13.0")), f"{found.name} needs {needs}"
    assert looked_at > 50


def test_examples_on_pages_read_nothing_of_the_repository():
    """tests/test_packaging.py runs them with the wheel; files that a page shows in whole are saved by its reader."""
    assert len(pages_that_run()) >= 12
    for page in pages_that_run():
        for block in blocks(page):
            if block.kind == "{code-cell}" or (block.kind == "{run}" and "hidden" not in block.options):
                assert not re.search(r"__file__|EXAMPLES|\b(examples|src|docs|tests)/", block.text), page
            for name in re.findall(r"EXAMPLES\S*/(\S+)", block.text):
                assert "{download}`" in (text := (ROOT / page).read_text()), page
                assert f"../examples/{name}>`" in text, page


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("jinja2")
    (code,) = (block.text for block in blocks("README.md") if block.kind == "python")
    patients(2000).to_csv(tmp_path / "patients.csv", index=False)  # as the commands above it do
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert "differentially private" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "synthetic.csv")) == 10_000
    assert "<html" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_citation_is_of_this_version():
    (version,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == fedsynth.__version__


@pytest.mark.parametrize("number", range(1, 19))
def test_every_attack_of_the_threat_model_has_a_test(number):
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "attacks").glob("test_*.py"))
    page = (ROOT / "docs" / "concepts" / "threat-model.md").read_text()
    assert re.search(rf"^\| A{number} \|.*`test_a{number:02}_\*`", page, re.MULTILINE)
    assert re.search(rf"^def test_a{number:02}_", tests, re.MULTILINE)
