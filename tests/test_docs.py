"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedsynth

ROOT = Path(__file__).parents[1]


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert "differentially private" in capsys.readouterr().out
    table = scope["table"]
    assert len(table) == 1000  # type: ignore[arg-type]
    assert (tmp_path / "model.fedsynth").exists()


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "SECURITY.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))],
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
