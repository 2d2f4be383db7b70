"""The report's page: what it must say, in which order, whatever users call their columns and whatever is absent."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace as structs_replace
from tests.evaluation.report_example import (
    LONG,
    QUOTES,
    SCRIPT,
    UNICODE,
    evaluation,
    ledger,
    run_directory,
    score,
)

from fedsynth.errors import FedsynthError, Unsupported
from fedsynth.evaluation.metrics import METRICS
from fedsynth.evaluation.plot_data import Associations, ColumnPlotData, PlotData
from fedsynth.evaluation.report import (
    MEANINGS,
    Evaluation,
    ReportTitle,
    findings,
    headline,
    render_report,
    standing,
    title_of,
    worst_details,
)
from fedsynth.evaluation.run_files import read_scores, run_summary, write_report, write_scores
from fedsynth.evaluation.score import Estimate, Score, Verdict
from fedsynth.evaluation.summary import RunSummary
from fedsynth.evaluation.verdicts import worst
from fedsynth.models.card import HiddenGroups, Limitations, LostColumn, ModelCard
from fedsynth.privacy.cost import Budget, Norms, Unit, epsilon_of
from fedsynth.privacy.ledger import Entry, Ledger
from fedsynth.privacy.release import Deposit, Exact, Gaussian
from fedsynth.runs.folder import RunFolder
from fedsynth.schema import Categorical, Numeric
from fedsynth.statement import ForeignPart

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """What a browser would see: tags in their order with the tags around them, and text by section."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.text = ""
        self._section = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"]

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        self.sections[self._section] = self.sections.get(self._section, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.tags if name == tag]

    def charts(self) -> list[str]:
        return [str(one["aria-label"]) for one in self.all("svg") if one.get("role") == "img"]


def page(found: Evaluation, run: RunSummary | None = None) -> Page:
    return Page(render_report(found, run))


def facts(folder: Path, book: Ledger | None = None, **job) -> RunSummary:
    return run_summary(RunFolder(run_directory(folder / "run", book or ledger(), **job)))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_page_is_whole_and_asks_for_nothing(tmp_path):
    html = render_report(evaluation(), facts(tmp_path))
    found = Page(html)
    assert html.lstrip().startswith("<!doctype html>")
    assert found.open == []
    assert {"script", "link", "img", "iframe", "object", "embed", "base"}.isdisjoint(tag for tag, _, _ in found.tags)
    targets = [one[name] for _, one, _ in found.tags for name in ("href", "src", "xlink:href", "style") if name in one]
    assert targets
    assert all(str(one).startswith("#") for one in targets)
    ids = [one["id"] for _, one, _ in found.tags if "id" in one]
    assert len(ids) == len(set(ids))
    assert {str(one)[1:] for one in targets} <= set(ids)
    assert "url(" not in html
    assert "@import" not in html
    assert "http" not in html.replace("http-equiv", "")


def test_a_page_is_made_of_numbers_alone(tmp_path):
    """A score, a few counts and nothing of any row: the page of released answers."""
    error = Score("fidelity", "error of a mean", Estimate(0.3, 0.2, 0.4), verdict="review", says="Ages are off.")
    error = dataclasses.replace(error, problem="Means differ", details={"age": (0.3, math.nan)})
    with_reference = dataclasses.replace(error, name="other", reference=Estimate(0.1), reference_is="the noise alone")
    bars = ColumnPlotData(
        "age", "numeric", ("0 to 40", "40 to 90"), ("bin", "bin"), (0.4, 0.6), (0.5, 0.5), (0, 40, 90)
    )
    for released in (True, False):
        for plotted in (PlotData(), PlotData((bars,))):
            found = Evaluation((error, with_reference), plotted, released=released)
            looked = page(found)
            assert looked.open == []
            assert "Means differ (error of a mean). Ages are off." in flat(looked.sections["summary"])
            assert "Reference: the noise alone" in flat(looked.text)
            assert ("distributions" in looked.sections) == ("associations" in looked.sections) == bool(plotted.columns)
            assert ("real rows without noise" in flat(looked.text)) is not released
            assert ("From released answers alone" in flat(looked.text)) is released
            assert "0 real" not in looked.text
            targets = {str(one["href"])[1:] for one in looked.all("a")}
            assert targets <= {one["id"] for _, one, _ in looked.tags if "id" in one}
            folder = RunFolder(tmp_path / f"{released}{len(plotted.columns)}")
            write_scores(folder, found)
            assert "error of a mean" in folder.scores_table.read_text()
            assert read_scores(folder).to_json() == found.to_json()
            found.to_html(tmp_path / "page.html")
            assert (tmp_path / "page.html").read_text() == write_report(folder, read_scores(folder)).read_text()
            assert list(found.frame["value"]) == [0.3] * 4
    assert "REAL" not in page(Evaluation((), released=True)).text


def test_names_and_categories_of_users_stay_text(tmp_path):
    found = page(evaluation(target=SCRIPT), facts(tmp_path, partition=f"column:{SCRIPT}", target=QUOTES))
    assert {"script", "img"}.isdisjoint(tag for tag, _, _ in found.tags)
    assert not any(name.startswith("on") for _, one, _ in found.tags for name in one)
    for name in (SCRIPT, QUOTES, LONG, UNICODE):
        assert name in found.text or any(one.get("title") == name for one in found.all("bdi"))
        assert any(label.startswith(f"{name}, real against synthetic") for label in found.charts())
    assert f"{LONG}: real" in found.text  # the tip of a category's bar has the whole name
    assert f"column:{SCRIPT}" in found.sections["summary"]


def test_the_sections_come_in_the_order_that_readers_need():
    order = ["summary", "distributions", "associations", "fidelity", "utility", "privacy", "rules"]
    assert [one["id"] for one in page(evaluation()).all("section")] == order


def test_every_chart_says_its_gist():
    found = page(evaluation())
    assert len(found.charts()) > 7 + 3
    assert all(len(label) > 20 for label in found.charts())
    decoration = [one for one in found.all("svg") if one.get("role") != "img"]
    assert all(one.get("aria-hidden") == "true" for one in decoration)


@pytest.mark.parametrize(
    ("trust", "says"),
    [
        ("trusted", "The server has to be trusted"),
        ("local", "Nobody has to be trusted"),
        ("secure", "not to collude"),
        ("moon", "against the adversary that the trust 'moon' names"),
    ],
)
def test_the_summary_says_budget_method_sites_and_who_is_trusted(tmp_path, trust, says):
    own = (ForeignPart("trust", "moon", "package:Moon"),) if trust == "moon" else ()
    run = facts(tmp_path, trust=trust, options={"rounds": 5}, said={"foreign": own})
    text = flat(page(evaluation(), run).sections["summary"])
    assert "limit ε = 1, of which 1 was spent, at δ = 1e-06" in text
    assert says in text
    assert "oneshot, rounds = 5" in text
    assert "4, rows split by label-skew:0.5" in text
    assert "2,000 real, 1,800 synthetic, 500 hold-out" in text
    assert "do not publish it" in text


def test_warnings_stand_where_they_are_due_and_only_there(tmp_path):
    calm = page(evaluation(), facts(tmp_path / "calm")).sections["summary"]
    for said, warning in (
        ({"seeded": True}, "Seeded noise: a simulation, not private"),
        ({"schema_draft": True}, "The schema was drafted from the data"),
    ):
        loud = page(evaluation(), facts(tmp_path / str(said), said=said))
        assert warning in loud.sections["summary"]
        assert ("certainty 100 % ▲ alarm" in flat(loud.sections["summary"])) is ("seeded" in said)
        assert warning not in calm
        assert "NOT FOR PUBLICATION" in loud.sections["privacy"]


def test_a_run_with_exact_releases_is_called_not_private(tmp_path):
    book = ledger()
    book.record(Entry(3, "sum", "counts", Exact(), ("site-000",), 12, Exact().cost(Norms(1, 1))))
    found = page(evaluation(), facts(tmp_path, book, method="augflaim-oracle"))
    assert "NOT PRIVATE: 1 release has no noise" in found.sections["summary"]
    assert "no guarantee" in flat(found.sections["summary"])
    assert "the best attacker’s certainty 100 % ▲ alarm at most, from 50 %" in flat(found.sections["summary"])
    assert "NOT PRIVATE: 1 release has no noise" in found.sections["privacy"]
    assert "no noise" in found.sections["ledger"]
    assert "% of the time" not in found.sections["privacy"]


def test_a_run_without_a_limit_is_called_not_private(tmp_path):
    run = facts(tmp_path, ledger(budget=Budget.none()))
    found = page(evaluation(), run)
    assert "NOT PRIVATE: 3 releases have no noise" in found.sections["summary"]
    assert "Limit" not in found.sections["ledger"]
    assert "from 4 sites" in found.text
    assert [line.cost for line in run.charges()] == [None]


def test_an_alarm_is_the_first_thing_in_the_summary():
    calm = evaluation()
    leak = score("privacy", "attribute disclosure", 0.9, 0.6, verdict="alarm")
    leak = dataclasses.replace(leak, problem="An attacker learns a sensitive value")
    found = page(dataclasses.replace(calm, scores=(*calm.scores, leak)))
    summary = flat(found.sections["summary"])
    assert summary.startswith(
        "Summary ▲ An attacker learns a sensitive value (attribute disclosure). What attribute disclosure says."
    )
    assert flat(page(calm).sections["summary"]).startswith("Summary ◆ To review: does it matter")


def test_the_guarantee_is_explained_before_the_attacks(tmp_path):
    text = flat(page(evaluation(), facts(tmp_path)).sections["privacy"])
    assert "(1, 1e-06)-differentially private for each row (add or remove one row)" in text
    assert "whether any one row is in the data changes" in text
    assert "against everyone but the server" in text
    assert "A person is protected less if more rows" in text
    assert "Choosing a run, a method or a setting by scores computed on real rows is not covered." in text
    assert "2.719" in text
    assert "73.2 % of the time" in text  # e / (e + 1) is 73.106 %, and a bound is rounded up
    assert text.index("What is guaranteed") < text.index("An attack that fails proves nothing")
    assert text.index("An attack that fails proves nothing") < text.index("DCR hold-out share")
    assert "✓ good" in text
    assert "◆ review" in text


def test_the_guarantee_is_the_limit_and_what_was_spent_stands_beside_it(tmp_path):
    found = page(evaluation(), facts(tmp_path, ledger(spent=0.25)))
    summary, privacy = flat(found.sections["summary"]), flat(found.sections["privacy"])
    assert re.search(r"limit ε = 1, of which 0\.4\d+ was spent", summary)
    assert "ε = 1:" in privacy
    assert "73.2 % of the time" in privacy
    assert re.search(
        r"The limit set for the run is \(epsilon, delta\) = \(1, 1e-06\); its releases cost epsilon = 0\.4", privacy
    )
    assert "spent: 25.0 % of it" in flat(found.sections["ledger"])


def test_a_pure_run_is_told_in_epsilon(tmp_path):
    run = facts(tmp_path, ledger(budget=Budget(2.0, 0.0), spent=0.75))
    found = page(evaluation(), run)
    assert "limit ε = 2, of which 1.5 was spent" in flat(found.sections["summary"])
    assert "2-differentially private" in found.sections["privacy"]
    assert "δ" not in found.sections["privacy"] + found.sections["ledger"]
    assert "ε of pure differential privacy" in found.sections["ledger"]
    assert [line.cost for line in run.totals()] == pytest.approx([0.5])
    assert run.totals()[0].total == pytest.approx(1.5)
    assert (run.sites()[0].epsilon, run.sites()[0].share) == pytest.approx((1.5, 0.75))


def test_a_simulation_says_who_saw_the_rows_before_what_is_guaranteed(tmp_path):
    found = page(evaluation(), facts(tmp_path, said={"simulated": True}))
    text = flat(found.sections["privacy"])
    assert "Whoever ran this saw all rows. Against everybody else, the synthetic data are (1, 1e-06)-" in text
    assert "So nobody except whoever ran this who guesses" in text
    assert "Nothing limits further runs on these rows" in text
    assert "Of a deployment: The server has to be trusted" in text
    assert "The guarantee holds against everybody except whoever ran this, who saw all rows." in text


@pytest.mark.parametrize(
    ("delta", "said"), [(0.999999, "(1, 0.999999)-differentially"), (9.99999e-7, "(1, 9.99999e-07)-differentially")]
)
def test_a_delta_is_not_rounded(tmp_path, delta, said):
    found = page(evaluation(), facts(tmp_path, ledger(budget=Budget(1.0, delta))))
    assert said in found.sections["privacy"]
    assert f"δ = {delta!r}" in flat(found.sections["privacy"])
    assert f"at δ = {delta!r}" in flat(found.sections["summary"])


def test_control_characters_are_shown_and_not_sent_to_a_terminal(tmp_path):
    """An escape sequence in a name or label can move a cursor or hide text where somebody prints the page."""
    hostile = "\x1b[2J\x07\u202eevil\x9b"
    seen = evaluation()
    columns = tuple(dataclasses.replace(one, name=one.name + hostile) for one in seen.plot_data.columns)
    about = ReportTitle(data=hostile, owner=hostile, title=hostile)
    scores = [dataclasses.replace(one, name=one.name + hostile, note=hostile, says=hostile) for one in seen.scores]
    changed = dataclasses.replace(
        seen,
        scores=tuple(scores),
        plot_data=dataclasses.replace(seen.plot_data, columns=columns),
        notes=(hostile,),
        about=about,
    )
    html = render_report(changed, facts(tmp_path, method=hostile))
    assert not {letter for letter in html if unicodedata.category(letter) in ("Cc", "Cf")} - {"\n", "\u200d"}
    assert "\\x1b[2J\\x07\\u202eevil\\x9b" in html
    Page(html)


def test_of_persons_and_public_sizes_the_page_says_who_is_protected(tmp_path):
    said = {"unit": Unit(3, 2), "public_sizes": True}
    text = flat(page(evaluation(), facts(tmp_path, said=said)).sections["privacy"])
    assert "for each person with up to 3 rows at each of up to 2 sites (replace the person's rows by as many" in text
    assert "which of two persons' rows are in the data changes" in text
    assert "The number of rows at each site is public" in text


def test_the_best_guess_is_that_of_randomized_response(tmp_path):
    # Randomized response reaches the bound of pure DP: it answers truly with e^eps / (1 + e^eps) = 3 / 4.
    run = facts(tmp_path, ledger(budget=Budget(math.log(3), 0.0)))
    assert run.certainty == pytest.approx(0.75)
    slack = facts(tmp_path / "slack", ledger(budget=Budget(1e-3, 0.5)))
    assert slack.certainty == pytest.approx((math.exp(1e-3) + 0.5) / (math.exp(1e-3) + 1))
    exact = facts(tmp_path / "exact", said={"exact": 0.5})
    assert exact.certainty == pytest.approx((math.exp(0.5) + 1e-6) / (math.exp(0.5) + 1))


def of(*scores: Score) -> Evaluation:
    return dataclasses.replace(evaluation(), scores=scores)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("coverage", "column similarity", "pair similarity"), "pair similarity"),
        (("coverage", "column similarity"), "column similarity"),
        (("coverage", "Wasserstein distance"), "coverage"),
    ],
)
def test_a_familys_headline_is_chosen_by_name_not_by_place(names, wanted):
    scores = tuple(score("fidelity", name, 0.9, 0.95) for name in names)
    for given in (scores, scores[::-1]) if wanted != "coverage" else (scores,):
        found = headline(of(*given), "fidelity")
        assert found is not None
        assert found.score.name == wanted
    assert headline(of(*scores), "privacy") is None


def attack(name: str, value: float, verdict: Verdict = "good") -> Score:
    made = score("privacy", name, value, 0.5, best=0.5, verdict=verdict)
    return dataclasses.replace(made, metric="membership-inference")


def test_the_headline_has_the_gravest_verdict_and_a_value_that_is_no_number_is_none():
    one, two = attack("membership AUC, GAN-Leaks", math.nan), attack("membership AUC, plain", 0.5)
    alarm = attack("membership TPR at FPR 1 %", 0.4, "alarm")
    for given, wanted in (((one, two), two), ((one,), one), ((one, two, alarm), alarm)):
        found = headline(of(*given), "privacy")
        assert found is not None
        assert found.score is wanted


VERDICTS: tuple[Verdict, ...] = ("", "good", "review", "alarm")


@pytest.mark.parametrize("verdicts", list(itertools.product(VERDICTS, repeat=2)))
@pytest.mark.parametrize("family", ["fidelity", "utility", "privacy"])
def test_badge_number_and_dot_of_a_card_agree(family, verdicts):
    """The badge is the gravest verdict of the family, the number that of a score with it, the dot lies in its zone."""
    names = ("membership AUC, DOMIAS", "membership AUC, plain")
    made = [score(family, name, 0.9, 0.95, verdict=one) for name, one in zip(names, verdicts, strict=True)]
    scores = tuple(dataclasses.replace(one, metric="membership-inference") for one in made)
    found = headline(of(*scores), family)
    assert found is not None
    gravest = worst(list(verdicts))
    assert found.score.verdict == gravest
    assert (found.gauge is None) is (gravest == "")
    if found.gauge is None:
        return
    zones = {mark.css: mark.path for mark in found.gauge.marks}
    start = {css: float(re.match(r"M([\d.]+)", path)[1]) for css, path in zones.items()}  # type: ignore[index]
    dot = start[f"dot {gravest}"] + 7  # a circle of this radius, whose path starts at its left
    begins = start[f"zone {gravest}"]
    assert begins < dot < begins + 260 / 3
    assert start["zone alarm"] < start["zone review"] < start["zone good"]
    summary = flat(page(of(*scores)).sections["summary"])
    assert (
        f"{found.score.name} 0.900 {dict(zip(VERDICTS, ('', '✓', '◆', '▲'), strict=True))[gravest]} {gravest}"
        in summary
    )


def test_what_is_proved_comes_first_then_attacks_then_similarity_as_a_footnote(tmp_path):
    copies = score("privacy", "exact matches by values", 0.004, 0.005, verdict="good", best=0.0)
    copies = dataclasses.replace(copies, metric="exact-matches")
    calm = evaluation()
    scores = [one for one in calm.scores if one.family != "privacy"]
    found = dataclasses.replace(calm, scores=(*scores, copies, attack("membership AUC, DOMIAS", 0.51)))
    summary = flat(page(found, facts(tmp_path)).sections["summary"])
    marks = (
        "Privacy: what is proved the best attacker’s certainty 73.2 % proved at most, from 50 %",
        "Nobody who guesses whether any one row is in the data, and would be right in 50 % of cases without the table",
        "Privacy: what attacks found membership AUC, DOMIAS 0.510 ✓ good reference 0.500",
        "Fidelity: is it close? pair similarity 0.910 reference 0.970",
        "Utility: is it useful? ROC AUC 0.865 reference 0.895",
        "Not a measure of privacy (why): exact matches by values 0.004, of other real rows 0.005.",
    )
    places = [summary.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "All attacks: 1 × ✓ good" in summary


def test_of_two_tables_what_is_proved_is_what_was_stated():
    assert "Nothing is known: two tables were compared." in flat(page(evaluation()).sections["summary"])
    stated = dataclasses.replace(evaluation(), guarantee=(math.log(3), 0.0))
    assert "the best attacker’s certainty 75 % proved" in flat(page(stated).sections["summary"])
    weak = dataclasses.replace(evaluation(), guarantee=(8.0, 1e-6))
    assert "certainty 100 % ◆ review" in flat(page(weak).sections["summary"])  # 99.97 %, rounded up


CARD = ModelCard(
    "auto",
    7,
    2000.0,
    headline="(1, 1e-06)-differentially private",
    sentence="The synthetic data are private.",
    conditions=("Assumption: none.",),
    publishable=True,
    guarantee=(1.0, 1e-6),
    unknown="whether any one row is in the data",
    held=3,
    pairs=(("age", "seen"), ("age", "smokes"), ("seen", "smokes")),
)


def test_of_a_synthesizer_the_page_has_its_card():
    found = page(dataclasses.replace(evaluation(), card=CARD))
    assert "certainty 73.2 % proved" in flat(found.sections["summary"])
    assert "Nothing is known" not in found.sections["summary"]
    assert "Assumption: none." in found.sections["privacy"]
    limits = Limitations(40.0, 60.0)
    sections = page(dataclasses.replace(evaluation(), card=structs_replace(CARD, limitations=limits))).sections
    assert "The smallest trustworthy groups: 200 rows for a value of one column" in flat(sections["model"])
    assert "The model holds 3 of 21 pairs of columns: age × seen" in flat(sections["model"])


def lost_mean() -> Score:
    made = score(
        "fidelity", "means kept", 0.5, 1.0, details={"age": (20_000.0, 42.0), "b": (1.0, 1.0)}, verdict="alarm"
    )
    return dataclasses.replace(made, metric="means", off=("age",))


def test_lost_columns_come_first_with_what_to_do_next():
    base = evaluation()
    summary = flat(page(dataclasses.replace(base, scores=(*base.scores, lost_mean()))).sections["summary"])
    assert summary.startswith(
        "Summary ▲ 1 of 7 columns is lost: what is computed from it is wrong. age: The mean is 20,000 in the synthetic "
        "rows and 42.0 in the real ones, 476 times as much. Do not use this column. Look at its distribution below"
    )
    assert "means kept 0.500 ▲ alarm" in summary
    assert "Do not use the columns that are lost." in summary
    value = LostColumn("one value", "age", "20,000", 1.0, "0 to 1,000,000,000")
    card = structs_replace(CARD, limitations=Limitations(lost=(value,)))
    summary = flat(page(dataclasses.replace(base, scores=(*base.scores, lost_mean()), card=card)).sections["summary"])
    assert "476 times as much. All synthetic rows have the same value, 20,000: how rows differ is lost." in summary
    assert "narrower ones, agree on these and run again" in summary
    assert summary.count("Do not use this column") == 1


@pytest.mark.parametrize(
    ("kind", "constant", "verdict"),
    [
        ("one value", False, "alarm"),
        ("one value", True, None),
        ("wide cell", False, "review"),
        ("hidden values", False, "review"),
    ],
)
def test_what_a_card_calls_lost_is_compared_with_the_real_rows(kind, constant, verdict):
    card = structs_replace(CARD, limitations=Limitations(lost=(LostColumn(kind, "age", "3", 0.9, "0 to 9"),)))
    base = evaluation()
    if constant:
        age = dataclasses.replace(
            base.plot_data.columns[0], real=(1.0, *[0.0] * (len(base.plot_data.columns[0].real) - 1))
        )
        base = dataclasses.replace(
            base, plot_data=dataclasses.replace(base.plot_data, columns=(age, *base.plot_data.columns[1:]))
        )
    found = [one.verdict for one in findings(base, card) if any(name == "age" for name, _ in one.items)]
    assert found == ([] if verdict is None else [verdict])


def test_what_was_not_measured_is_said(tmp_path):
    bare = evaluation(target="", holdout=0)
    bare = dataclasses.replace(bare, scores=tuple(one for one in bare.scores if one.family == "fidelity"))
    found = page(bare, facts(tmp_path))
    assert "Not measured: no column to predict was named." in flat(found.sections["utility"])
    assert "no hold-out" in found.sections["summary"]
    assert "No attack was run: attacks need hold-out rows that no site had." in flat(found.sections["privacy"])
    empty = page(dataclasses.replace(bare, scores=()))
    assert "Not measured." in empty.sections["fidelity"]


def test_a_number_that_is_none_is_called_not_defined():
    found = page(evaluation())
    assert "not defined" in found.sections["fidelity"]
    assert "MLP: real 0.880, synthetic not defined" in found.sections["utility"]
    assert not re.search(r"\bnan\b", render_report(evaluation(), None), re.IGNORECASE)


def test_without_a_run_the_page_says_so_and_has_no_ledger():
    found = page(evaluation())
    assert "two tables were compared" in found.sections["summary"]
    assert "it states no guarantee" in found.sections["privacy"]
    assert "ledger" not in found.sections
    assert "#ledger" not in [one["href"] for one in found.all("a")]


def test_of_a_wide_table_the_worst_24_columns_stand_in_the_open():
    columns = [
        Numeric(f"n{at}", 0, 10, bins=5) if at % 2 else Categorical(f"c{at}", tuple("abcdef")) for at in range(200)
    ]
    html = render_report(evaluation(columns, target=""), None)
    found = Page(html)
    cards = [("details" in around) for tag, one, around in found.tags if tag == "figure" and one.get("class") == "card"]
    assert cards == [False] * 24 + [True] * 176
    similarities = [float(one) for one in re.findall(r"similarity ([\d.]+)", found.sections["distributions"])]
    assert len(similarities) == 200
    assert similarities == sorted(similarities)
    assert len(re.findall(r"[\d.]+ % of rows differ", found.sections["distributions"])) == 200
    assert len(html.encode()) < 5e6
    assert "The first 40 of 200 columns are shown." in flat(found.sections["associations"])


def test_columns_whose_similarity_was_not_measured_are_sorted_by_the_rows_that_differ():
    base = evaluation(target="")
    base = dataclasses.replace(base, scores=tuple(one for one in base.scores if one.name != "column similarity"))
    shares = re.findall(r"([\d.]+) % differ", page(base).sections["distributions"])
    assert [float(one) for one in shares] == sorted(map(float, shares), reverse=True)


def test_one_column_has_no_pairs():
    found = page(evaluation([Numeric("alone", 0, 10)], target=""))
    assert "there are no pairs" in found.sections["associations"]


def test_a_long_ledger_is_grouped_and_its_running_total_is_the_ledgers_own(tmp_path):
    book = Ledger(Budget(2.0, 1e-6))
    sites = tuple(f"s{at}" for at in range(30))
    release = Gaussian(book.budget.rho / 700)
    for step in range(600):
        asked = sites if step % 2 else sites[: 1 + step % 30]
        verb = "sum" if step % 2 else "choose"
        book.record(Entry(step, verb, "counts", release, asked, 10, release.cost(Norms(1, 1))))
    run = facts(tmp_path, book)
    lines = run.charges()
    assert len(lines) == 600
    assert [line.total for line in lines] == sorted(line.total for line in lines)
    assert lines[-1].total == pytest.approx(book.spent.rho)
    totals = run.totals()
    assert [(line.what, line.asked, line.sites, line.cells) for line in totals] == [
        ("choose counts", 300, 29, 3000),
        ("sum counts", 300, 30, 3000),
    ]
    assert [line.total for line in totals] == pytest.approx([300 * release.rho] * 2)  # s0 was asked every time
    charged = {name: group.cost for group in run.sites() for name in group.names}
    assert charged == pytest.approx({site: cost.rho for site, cost in book.per_site.items()})
    assert run.sites()[0].epsilon == pytest.approx(epsilon_of(book.spent.rho, 1e-6), rel=1e-6)
    found = page(evaluation(), run)
    assert "The other 100 lines are in ledger.json." in flat(found.sections["ledger"])
    assert "600 entries" in found.sections["ledger"]
    assert "All 30 sites that were charged" in found.sections["ledger"]


def test_equal_lines_in_a_row_become_one_and_what_was_paid_before_costs_nothing(tmp_path):
    book = Ledger(Budget(1.0, 1e-6))
    deposit, part = Deposit(book.budget.rho), Gaussian(book.budget.rho / 4)
    book.record(Entry(0, "deposit", "counts", deposit, ("a", "b"), 500, deposit.cost(Norms(1, 1))))
    for step in range(1, 5):
        book.note(
            Entry(step, "open", "vault", part, ("a", "b"), 10, part.cost(Norms(1, 1)), 3.0, paid_by="deposit of step 0")
        )
    run = facts(tmp_path, book)
    assert [(line.steps, line.asked, line.cells) for line in run.charges()] == [((0, 0), 1, 500), ((1, 4), 4, 40)]
    assert [line.total for line in run.charges()] == pytest.approx([book.budget.rho] * 2)
    assert [line.total for line in run.totals()] == pytest.approx([book.budget.rho, 0.0])
    assert "paid by the deposit of step 0" in page(evaluation(), run).sections["ledger"]


def test_a_run_directory_is_read_as_it_stands(tmp_path):
    run = facts(tmp_path, seed=7)
    assert (run.folder, run.rows, run.job["seed"]) == ("run", 7, 7)  # rows, not lines: cells may hold line ends
    rules = page(evaluation(), run).sections["rules"]
    for told in (
        "cd" * 32,
        "ab" * 32,
        "fedsynth simulate --config run/run.toml",
        "the same bit for bit",
        "300 random pairs",
    ):
        assert told in rules


def test_groups_that_noise_hides_are_listed_by_name(tmp_path):
    run = facts(tmp_path)
    assert run.card is None  # the directory has no model
    assert "model" not in page(evaluation(), run).sections
    group = HiddenGroups("count", SCRIPT, 3, 30, 40.4, 55.0, ((QUOTES, 30.0), ("b", 20.0), ("c", 5.0)))
    limits = Limitations(40.4, 620.0, 2, ("which columns are related is a guess",), (SCRIPT, "age"), (group,), 31)
    card = structs_replace(CARD, limitations=limits)
    found = page(evaluation(), dataclasses.replace(run, card=card))
    listed = flat(found.sections["model"])
    assert "40 rows for a value of one column, 620 rows for a crossing of two." in listed
    assert f"{SCRIPT}: the counts of 3 of 30 values (below 40 rows): {QUOTES} (30), b (20), c (5)" in listed
    assert "and more: 31 columns or pairs" in listed
    assert f"Noise: Which columns are related is a guess. The weakest relations have {SCRIPT}, age." in flat(
        found.sections["summary"]
    )
    assert "script" not in {tag for tag, _, _ in found.tags}


@pytest.mark.parametrize("missing", ["run.toml", "ledger.json", "synthetic.csv"])
def test_an_incomplete_run_directory_is_refused(tmp_path, missing):
    folder = run_directory(tmp_path / "run", ledger())
    (folder / missing).unlink()
    with pytest.raises(FedsynthError, match=missing):
        run_summary(RunFolder(folder))


def test_a_ledger_without_a_statement_is_refused(tmp_path):
    folder = run_directory(tmp_path / "run", ledger())
    (folder / "ledger.json").write_text(json.dumps(ledger().to_json()))
    with pytest.raises(FedsynthError, match="run the job again"):
        run_summary(RunFolder(folder))
    (folder / "ledger.json").write_text("{}")
    with pytest.raises(FedsynthError, match="has no known format number, but this version of fedsynth reads format 1"):
        run_summary(RunFolder(folder))


def test_without_jinja_the_mend_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(Unsupported, match=r"fedsynth\[evaluate\]"):
        render_report(evaluation(), None)


def test_standing_is_read_off_band_and_best():
    inside, better = score("fidelity", "x", 0.955, 0.95, best=1.0), score("fidelity", "x", 0.99, 0.95, best=1.0)
    assert standing(inside) == "inside the reference's band"
    assert standing(better) == "better than the reference's band"
    assert standing(score("fidelity", "x", 0.05, 0.01, best=0.0, band=0.02)) == "worse than the reference's band"
    assert standing(score("fidelity", "x", -4.0, -6.0)) == "above the reference's band"
    assert standing(score("fidelity", "x", 0.5, 0.4, band=math.nan)) == ""
    chance = dataclasses.replace(score("privacy", "x", 0.51, 0.5, best=0.5), reference=Estimate(0.505))
    assert standing(chance) == "its band holds the reference"
    leak = dataclasses.replace(score("privacy", "x", 0.6, 0.5, best=0.5), reference=Estimate(0.5))
    assert standing(leak) == "worse than the reference"
    assert standing(dataclasses.replace(leak, reference=Estimate(math.nan))) == ""


def test_the_worst_details_are_farthest_from_their_reference():
    parts = {f"c{at}": (at / 20, 0.5) for at in range(15)} | {"broken": (math.nan, 0.5)}
    found = worst_details(score("fidelity", "x", 0.5, 0.5, best=1.0, details=parts))
    assert [name for name, _ in found][:3] == ["c0", "c1", "c2"]  # 0.5, 0.45, 0.4 away from 0.5
    assert len(found) == 10
    assert "broken" not in dict(found)


def lossy() -> Evaluation:
    """Return an evaluation whose strongest association is gone, whose second has changed sign, and one is half kept."""
    details = {"a × c": (0.3, -0.5), "a × b": (0.05, 0.9), "a × d": (0.2, 0.4)}
    kept = score("fidelity", "strong associations kept, above 0.3", 0.6, 1.0, best=1.0, details=details)
    heaps = score("fidelity", "heaps kept", 0.5, 1.0, details={"n = 1,000": (0.007, 0.17), "n = 0": (0.1, 0.1)})
    scores = (dataclasses.replace(kept, metric="associations-kept"), dataclasses.replace(heaps, metric="heaps"))
    base = evaluation(target="")
    return dataclasses.replace(base, scores=(*(METRICS[one.metric].judged(one, 1000) for one in scores), *base.scores))


def test_lost_associations_and_heaps_stand_in_the_summary_strongest_first():
    looked = page(lossy())
    summary = flat(looked.sections["summary"])
    assert "Fidelity: is it close? strong associations kept, above 0.3 0.600 ◆ review" in summary
    assert "Lost (real → synthetic): a × b: 0.90 → 0.05; a × c: -0.50 → 0.30." in summary
    assert "too rare or too frequent (heaps kept). Of 2 values" in summary
    assert "n = 1,000: 17.0% → 0.7%" in summary
    associations = flat(looked.sections["associations"])
    assert "of which the synthetic rows keep less than half" in associations
    assert associations.index("a × b0.900") < associations.index("a × c−0.500")
    assert "Lost associations" not in page(evaluation(target="")).sections["associations"]


def test_each_family_says_its_gravest_verdict_and_what_to_do_about_it():
    calm = evaluation()
    sad = score("fidelity", "strong associations kept", 0.2, 0.95, best=1.0, verdict="alarm")
    summary = flat(page(dataclasses.replace(calm, scores=(*calm.scores, sad))).sections["summary"])
    assert "Fidelity: is it close? strong associations kept 0.200 ▲ alarm reference 0.950" in summary
    assert "Do not analyse this table" in summary
    assert "Utility: is it useful? ROC AUC" in summary
    for meaning in MEANINGS.values():
        assert meaning in summary
    assert "look" not in re.findall(r"\w+", page(calm).text)


def test_attacks_come_under_the_words_of_the_law_with_their_bounds_and_distances_last(tmp_path):
    calm = evaluation()
    attacks = [
        ("membership TPR at FPR 1 %, DOMIAS", "membership-inference", 0.027),
        ("membership AUC, DOMIAS", "membership-inference", 0.731),
        ("attribute disclosure", "attribute-disclosure", math.nan),
        ("disclosure advantage over non-members", "attribute-disclosure", 0.462),
        ("median DCR", "distance-to-real", math.nan),
    ]
    scores = tuple(
        dataclasses.replace(score("privacy", name, 0.5, 0.5, verdict="good"), metric=metric, bound=bound, p_value=0.4)
        for name, metric, bound in attacks
    )
    text = flat(page(dataclasses.replace(calm, scores=scores[::-1]), facts(tmp_path)).sections["privacy"])
    marks = (
        "What is guaranteed",
        "Singling out Can",
        "recognises more than 2.7% of the rows.",
        "What membership TPR",
        "Linkability Can",
        "AUC above 0.731; 0.5 is guessing.",
        "What membership AUC",
        "Inference Does",
        "more than 46.2 percentage points",
        "What attribute disclosure",
        "Copies and distances",
        "lack a precise interpretation and should be avoided",
        "What median DCR",
    )
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "corrected for their number, 5, by Holm" in text
    assert "Corrected p-value: 0.4." in text
    assert "no bound" in text
    bare = flat(page(dataclasses.replace(calm, scores=(scores[2],))).sections["privacy"])
    assert "Formal bound: none is known for these scores" in bare
    assert "Copies and distances" not in bare


def test_the_head_says_title_date_data_and_owner():
    bare = page(evaluation())
    assert "Report on a synthetic table" in bare.text
    assert "Owner not named" in flat(bare.text)
    about = ReportTitle("Claims, <b>synthetic</b>", "Health Office", "claims.csv", "2026-02-03")
    found = page(dataclasses.replace(evaluation(), about=about))
    assert found.text.count("Claims, <b>synthetic</b>") == 2  # of the window and of the page
    assert "Measured on 2026-02-03 Data claims.csv Owner Health Office" in flat(found.text)
    assert title_of(dataclasses.replace(about, title="")) == "Report on the synthetic version of claims.csv"


def test_the_worst_pairs_are_named_with_both_values():
    base = evaluation(target="")
    matrices = Associations(
        ("a", "b", "c"), ((1, 0.5, 0.1), (0.5, 1, 0), (0.1, 0, 1)), ((1, 0.2, 0.1), (0.2, 1, 0), (0.1, 0, 1))
    )
    text = flat(
        page(dataclasses.replace(base, plot_data=PlotData(base.plot_data.columns, matrices))).sections["associations"]
    )
    assert "a × b0.5000.200−0.300" in text.replace(" 0.", "0.").replace(" −", "−")
