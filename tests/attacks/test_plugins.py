"""A18: a coordinator asks for questions of packages that happen to be installed at a site.

A site imports what its steward named in ``[policy.kinds]``, when a question of that kind comes, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.world import (
    AGE,
    CHEAP,
    DIAGNOSES,
    DIAGNOSIS,
    ask,
    ask_deployed,
    deployed,
    frame,
    question,
    site,
    table,
    values,
    with_head,
)

from fedsynth.deploy.host.checks import check_site
from fedsynth.errors import InvalidParameter
from fedsynth.federation.wire import Request
from fedsynth.privacy.release import Exact, Release

THEIRS = """
from typing import ClassVar

import numpy as np

from fedsynth.errors import InvalidParameter
from fedsynth.federation.query import Position, Query
from fedsynth.privacy.cost import Sensitivity


class Theirs(Query, frozen=True):
    kind: ClassVar[str] = "theirs"
    column: Position

    def check(self, schema):
        if self.column >= len(schema.columns):
            raise InvalidParameter("no such column")

    def sensitivity(self, schema):
        return Sensitivity(10, 10, 20, 15)

    def cells(self, schema):
        return schema.columns[self.column].size

    def answer(self, rows):
        return np.bincount(rows.codes[self.column], minlength=self.cells(rows.schema)).astype(np.int64)


class Loose(Theirs, frozen=True, forbid_unknown_fields=False):
    pass


class Other(Theirs, frozen=True):
    kind: ClassVar[str] = "other"


nothing = 3
"""
MODULE = "theirs_of_a_package"
PLACE = f"{MODULE}:Theirs"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed at the site's host, with entry points of every group that fedsynth reads."""
    (tmp_path / f"{MODULE}.py").write_text(THEIRS)
    described = tmp_path / f"{MODULE}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Name: {MODULE}\nVersion: 1.0\n")
    groups = ("queries", "methods", "sources", "metrics")
    entries = "".join(f"[fedsynth.{group}]\ntheirs = {PLACE}\nsize = {PLACE}\n\n" for group in groups)
    (described / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(MODULE, None)


def asked(column: int = DIAGNOSIS, kind: str = "theirs", release: Release = CHEAP, **extra: Any) -> Request:
    """Return a signed question of another package's kind, written by hand."""
    return with_head(question(release=release), {"kind": kind, "query": {"column": column, **extra}})


@pytest.mark.parametrize("kind", ["theirs", PLACE, f"fedsynth.queries:{PLACE}", MODULE, "os:system", "../theirs"])
@pytest.mark.parametrize("policy", [{}, {"kinds": {"other": f"{MODULE}:Other"}}], ids=["none", "another"])
def test_a18_a_kind_that_the_policy_does_not_name_is_refused_and_nothing_is_imported(kind, policy):
    of = site(**policy)
    before = set(sys.modules)
    reply = ask(of, asked(kind=kind))
    assert (reply.code, reply.answer) == ("refused", None)
    assert MODULE not in sys.modules
    assert not {name for name in set(sys.modules) - before if not name.startswith(("fedsynth.", "encodings."))}
    assert of.account.spent().rho == 0


def test_a18_a_deployed_site_imports_what_its_file_names_and_when_it_is_asked(tmp_path):
    bare, named = (
        deployed(tmp_path / name, frame(), **kinds)
        for name, kinds in (("bare", {}), ("named", {"kinds": {"theirs": PLACE}}))
    )
    assert ask_deployed(bare, asked()).code == "refused"
    assert ask_deployed(named, question()).code == "answered"
    assert MODULE not in sys.modules
    assert ask_deployed(named, asked()).code == "answered"
    assert MODULE in sys.modules


def test_a18_a_kind_that_the_policy_names_answers_to_every_check_of_the_core():
    exact = site(kinds={"theirs": PLACE}, exact=True)
    honest = asked()
    released = asked(release=Exact())
    np.testing.assert_array_equal(
        values(ask(exact, released)), np.bincount(table().codes[DIAGNOSIS], minlength=len(DIAGNOSES))
    )

    of = site(kinds={"theirs": PLACE})
    assert ask(of, released).code == "refused"  # no noise
    assert ask(of, asked(column=AGE + 1)).code == "refused"  # its own check
    assert ask(of, asked(column=-1)).code == "refused"  # the bounds of its fields
    assert ask(of, asked(further=1)).code == "refused"  # fields that it does not have
    assert ask(of, asked(column=True)).code == "refused"  # a type that would not be written back so
    assert ask(site(kinds={"theirs": PLACE}, largest_answer=len(DIAGNOSES) - 1), honest).code == "refused"
    assert of.account.spent().rho == 0
    assert ask(of, honest).code == "answered"
    assert of.account.spent().rho == pytest.approx(CHEAP.rho)
    # Noise is made for the sensitivity that it declares, ten times that of a table: the ratio is about 15, and beyond
    # the bounds once in 10^15 times.
    spread = [values(ask(site(kinds={"theirs": PLACE}, secret=bytes([k]) * 32), honest)).std() for k in range(20)]
    plain = [values(ask(site(secret=bytes([k]) * 32), question())).std() for k in range(100)]  # of two cells each
    assert 4 < np.mean(spread) / np.mean(plain) < 40


@pytest.mark.parametrize("name", ["Loose", "Other", "nothing", "absent"])
def test_a18_a_place_that_holds_no_query_of_that_kind_is_refused_and_said_to_the_steward(name, tmp_path):
    place = f"{MODULE}:{name}"
    of = site(kinds={"theirs": place})
    assert ask(of, asked()).code == "refused"
    assert of.account.spent().rho == 0
    config = deployed(tmp_path / "site", frame(), kinds={"theirs": place})
    (finding,) = [found for found in check_site(config) if found.name == "policy"]
    assert finding.state == "failure"
    assert "theirs" in finding.found


def test_a18_no_package_takes_the_place_of_a_built_in_kind():
    with pytest.raises(InvalidParameter, match="size come with fedsynth"):
        site(kinds={"size": PLACE})
    assert ask(site(exact=True), question(release=Exact())).code == "answered"  # though an entry point is named so
    assert MODULE not in sys.modules
