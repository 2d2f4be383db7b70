"""A setting is declared once: its option, its entry of a file and its line of the reference come from one field."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from fedsynth.cli.adapter import Fields, options_of, run
from fedsynth.errors import InvalidParameter
from fedsynth.federation.policy_file import PolicySection
from fedsynth.runs.job import Job
from fedsynth.settings import read_settings, texts

PLUGIN = '''
from typing import Annotated, Any

from msgspec import Meta

from fedsynth.deploy.host.config import SiteSection
from fedsynth.runs.job import Job


class LargerJob(Job, frozen=True):
    """A job with one more setting."""

    patience: Annotated[int, Meta(ge=2, le=9)] = 3
    """Number of rounds without progress after which the run ends."""


class LargerSite(SiteSection, frozen=True):
    """A site with one more setting."""

    floor: Annotated[int, Meta(ge=0)] = 1
    """Floor of the building where the server stands."""
'''
"""A package that adds one field to a job and one to a site's file, and nothing else."""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "larger.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("larger")
    sys.modules.pop("larger")


def test_one_field_is_an_option_an_entry_and_a_line_of_the_reference(plugin):
    made: list[Any] = []

    def command(job: partial[Job]) -> None:
        made.append(job(method="auto", epsilon=1.0, delta=1e-6))

    command.__annotations__["job"] = Annotated[partial[plugin.LargerJob], Fields("patience", "trust")]  # type: ignore[name-defined]
    (trust, patience) = options_of(command)
    assert (trust.spelled, patience.spelled) == ("--trust", "--patience")
    assert patience.usage == "--patience NUMBER"
    described = "Number of rounds without progress after which the run ends.  [default: 3; at least 2, at most 9]"
    assert patience.described == described
    run(command, (), {"patience": 4})
    assert made[0].patience == 4
    with pytest.raises(InvalidParameter, match="--patience: expected a whole number of at least 2, at most 9, not 1"):
        run(command, (), {"patience": 1})

    job = plugin.LargerJob.from_toml('method = "auto"\nepsilon = 1.0\ndelta = 1e-6\npatience = 5\n')
    assert job.patience == 5
    assert plugin.LargerJob.from_toml(job.to_toml()) == job
    with pytest.raises(InvalidParameter, match="patiense is unknown; did you mean 'patience'"):
        plugin.LargerJob.from_toml('method = "auto"\nepsilon = 1.0\ndelta = 1e-6\npatiense = 5\n')
    with pytest.raises(InvalidParameter, match="patience: expected a whole number of at least 2, at most 9, not 10"):
        plugin.LargerJob("auto", 1.0, 1e-6, patience=10)

    assert read_settings(plugin.LargerSite, {"name": "north", "floor": 2}).floor == 2
    pages = _pages()
    for kind in (plugin.LargerJob, plugin.LargerSite):
        field = pages.msgspec.structs.fields(kind)[-1]
        line = pages.setting(field, kind)
        assert line.startswith(f"| `{field.name}` | {texts(kind)[field.name]}  [default: ")


def test_every_setting_has_its_text_and_the_reference_has_it():
    pages = _pages()
    (page,) = pages.settings().values()
    for title, kind in pages.SETTINGS.items():
        assert title in page
        lacking = set(kind.__struct_fields__) - set(texts(kind)) - {"deployment"}
        assert not lacking, kind
        assert all(f"| `{name}` | " in page for name in kind.__struct_encode_fields__)
    assert set(texts(PolicySection)) == set(PolicySection.__struct_fields__)


def _pages():
    place = Path(__file__).parents[2] / "docs" / "_ext" / "generated_pages.py"
    spec = importlib.util.spec_from_file_location("generated_pages", place)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
