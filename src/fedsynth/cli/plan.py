"""The commands for planning: ``fedsynth plan`` and ``advise``."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fedsynth import errors
from fedsynth.cli.adapter import Fields
from fedsynth.cli.options import declared_by, say
from fedsynth.cli.output import tell, text_width
from fedsynth.plugins import named
from fedsynth.privacy.cost import ROUNDING, in_full, rounded_up, to_json
from fedsynth.progress import shown
from fedsynth.runs.job import Job

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.table import Table

    from fedsynth.federation.agreement import Agreement
    from fedsynth.federation.query import Extent
    from fedsynth.privacy.release import SampledGaussian
    from fedsynth.runs.dry_run import Forecast, ForecastRange
    from fedsynth.runs.plan import AdviceTable
    from fedsynth.schema import Schema

_EXAMPLE = "--schema agreed.toml --rows 30000 --sites 5 --epsilon 1 --delta 1e-6"
_PLANNED = ("delta", "weak_delta", "options", "workload")
_PROTECTED = ("trust_options", "public_sizes", "rows_per_person", "sites_per_person")


def plan(
    *,
    schema: Path | None = None,
    rows: Annotated[int, Meta(ge=1)] | None = None,
    sites: str = "",
    method: str = "auto",
    epsilon: str = "",
    job: Annotated[
        partial[Job],
        Fields(*_PLANNED, *_PROTECTED, optional=True, trust=""),
    ],
    repeats: Annotated[int, Meta(ge=1)] = 3,
    headroom: float = 2.0,
    questions: Path | None = None,
    out: Path | None = None,
    show: Path | None = None,
    force: bool = False,
    json_: bool = False,
) -> None:
    r"""Predict a run's traffic and noise before it spends budget.

    Unless --show is given, --schema, --rows, --sites, --epsilon and --delta are required.

    Predicts messages, bytes, privacy cost and noise by trial runs of the method over random rows made from the schema:
    no data is read. Figures that depend on the data are given as a range. --method, --sites and --epsilon take several
    values, separated by commas. With --out, the plan of a single run is written: the list of its questions, with the
    privacy cost of each, which the sites are asked to approve.

    Examples:

      fedsynth plan --schema agreed.toml --rows 30000 --sites 5 \
        --method fedprivsyn,augflaim --epsilon 1 --delta 1e-6

      fedsynth plan --schema agreed.toml --rows 30000 --sites 5 \
        --method oneshot --trust secure --trust-set min_honest=3 \
        --epsilon 1 --delta 1e-6 --out plan.toml

      fedsynth plan --show plan.toml

    Parameters
    ----------
    rows
        Number of real rows of all sites together: an estimate from public knowledge, since an exact count could itself
        reveal something about a person.
    sites
        Number of sites that will take part; several, separated by commas, give a prediction for each.
    method
        Method to predict: a name listed by `fedsynth methods`, or package.module:Class for one of your own; several,
        separated by commas, give a prediction for each.
    epsilon
        Epsilon of the guarantee: how much the result may reveal about one person. Smaller: more privacy and more noise;
        usual values are 0.1 to 10. Several, separated by commas, give a prediction for each.
    repeats
        Number of trial runs on each of five random tables: more make the predicted ranges more reliable.
    headroom
        Safety factor, at least 1. Where trial runs ask different questions, since these depend on the data or on
        sampled sites, the plan allows this factor times the highest privacy cost of a question in them (at most the
        whole budget) and, if their numbers of questions differ, times the largest one.
    out
        Plan file (TOML) to write, for the sites to approve; needs a single --method, --sites and --epsilon. Without it,
        the prediction is only printed.
    show
        Plan file (TOML) to print in words; all other options but --json are ignored.
    """
    import msgspec

    from fedsynth.federation.agreement import Agreement
    from fedsynth.runs.dry_run import job_forecast
    from fedsynth.schema import Schema

    if show is not None:
        made = Agreement.load(show)
        say(json_, {"digest": made.digest, "plan": msgspec.to_builtins(made)}, _plan_text(made))
        return
    if schema is None or rows is None or not sites or not epsilon or "delta" not in job.keywords:
        raise errors.InvalidParameter(
            f"--schema, --rows, --sites, --epsilon and --delta are required, for example {_EXAMPLE}"
        )
    cases = list(itertools.product(method.split(","), _numbers("--sites", sites), _numbers("--epsilon", epsilon)))
    if out is not None and len(cases) > 1:
        raise errors.InvalidParameter(
            f"--out writes one plan, but there are {len(cases)} cases: give one --method, --sites and --epsilon"
        )
    if out is not None and out.exists() and not force:
        raise errors.FedsynthError(
            f"{out} exists and may have been approved; choose another --out, or pass --force to replace it"
        )
    agreed = Schema.load(schema)
    asked = declared_by(questions)
    jobs = [job(method=name, epsilon=budget, sites=_whole("--sites", count), **asked) for name, count, budget in cases]
    forecast_answers = named("fedsynth.answers.forecast:expected_answers") if asked else None
    expected = forecast_answers(jobs[0], agreed, rows) if forecast_answers else []
    with shown(not json_) as progress:
        forecasts = [
            job_forecast(made, agreed, rows=rows, repeats=repeats, headroom=headroom, progress=progress)
            for made in jobs
        ]
    if out is not None:
        forecasts[0].plan.save(out)
    if json_:
        written = None if out is None else str(out)
        facts = {"out": written, "forecasts": [forecast.to_json() for forecast in forecasts]}
        print(json.dumps({**facts, "answers": to_json(expected)} if asked else facts))
        return
    _tell(forecasts, agreed)
    if expected:
        tell("\n" + named("fedsynth.answers.forecast:expected_text")(expected, jobs[0].answer_share))
    if out is not None:
        tell(f"\n{_plan_text(forecasts[0].plan)}\nWritten to {out}: send it to every site's data steward.")


def advise(
    *,
    schema: Path,
    rows: Annotated[int, Meta(ge=1)],
    method: str = "",
    job: Annotated[partial[Job], Fields("epsilon", "delta", "sites", "partition", *_PROTECTED, trust="")],
    wanted: float | None = None,
    tables: Annotated[int, Meta(ge=1)] = 3,
    seconds: float = 120.0,
    json_: bool = False,
) -> None:
    r"""Predict each method's error, to choose method and epsilon.

    Runs the methods on random tables made from the schema. Prints for each method its errors on single columns and on
    pairs of columns, the smallest count that stands out from the noise, and in words how good that is. An error is the
    mean L1 distance (0 to 2) between the marginals of the random and of the synthetic table: the shares of their rows
    with each value or pair of values. No data is read: your own rows may give smaller or larger errors. The random
    tables are of three kinds: independent columns, dependence as in most real tables, and strong dependence.

    Methods that train neural networks take minutes each; they run only if --method names them.

    Examples:

      fedsynth advise --schema agreed.toml --rows 30000 --sites 5 \
        --epsilon 1 --delta 1e-6 --trust trusted

      fedsynth advise --schema agreed.toml --rows 30000 \
        --epsilon 1 --delta 1e-6 --method oneshot,tda --wanted 0.1

    Parameters
    ----------
    rows
        Number of real rows of all sites together: an estimate from public knowledge, since an exact count could itself
        reveal something about a person.
    method
        Methods to try, separated by commas; each a name listed by `fedsynth methods`, or package.module:Class for one
        of your own. Default: all differentially private ones that train no neural networks. A method that does not run
        under --trust is tried under trusted.
    wanted
        Error on pairs of columns to aim for (above 0 and below 2; at 0.1, 5 % of the rows have a wrong pair of values):
        the epsilon that each method needs for it is searched as well. Without it, no epsilon is searched.
    tables
        Number of random tables of each of the three kinds: more make the figures more reliable.
    seconds
        Seconds after which no further run begins; each method runs on the first table anyway.
    """
    from fedsynth import api
    from fedsynth.schema import Schema

    made = job(method="auto", weak_delta=True)  # a forecast guarantees nothing
    with shown(not json_) as progress:
        found = api.advise(
            Schema.load(schema),
            rows=rows,
            sites=made.sites,
            epsilon=made.epsilon,
            delta=made.delta,
            methods=method.split(",") if method else (),
            trust=made.trust,
            trust_options=made.trust_options,
            unit=made.unit,
            public_sizes=made.public_sizes,
            partition=made.partition,
            wanted=wanted,
            tables=tables,
            seconds=seconds,
            progress=progress,
        )
    if json_:
        print(json.dumps(found.to_json()))
        return
    _tell_advice(found, f"{errors.number_of(made.sites, 'site')}, epsilon {in_full(made.epsilon)}", wanted)


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise errors.InvalidParameter(f"{option} {text}: expected a number or a comma-separated list") from error


def _whole(option: str, number: float) -> int:
    if number != int(number) or number < 1:
        raise errors.InvalidParameter(f"{option} {number:g}: expected a whole number of at least 1")
    return int(number)


def _console() -> Console:
    from rich.console import Console

    return Console(width=text_width())


def _table(title: str, *headings: str) -> Table:
    """Return an empty table of which only the methods and what is released are texts; numbers are never broken."""
    from rich.table import Table

    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        text = heading in ("method", "released")
        overflow: OverflowMethod = "fold" if text else "ellipsis"
        table.add_column(heading, justify="left" if text else "right", no_wrap=not text, overflow=overflow)
    return table


def _tell(forecasts: Sequence[Forecast], schema: Schema) -> None:
    console = _console()
    case = ("method", "sites", "trust", "epsilon")
    head = f"Before any budget is spent: {forecasts[0].rows} rows, schema {schema.digest[:12]}"
    rounds = _table(head, *case, "exchanges", "messages a site", "epsilon spent")
    sizes = _table("Bytes of these messages", *case, "KiB to a site", "KiB from a site", "KiB stored")
    noise = _table(
        "Standard deviation of the noise in a cell, in the units of the answer",
        *(*case, "released", "times", "cells", "sd in a cell"),
    )
    for forecast in forecasts:
        plan = forecast.plan
        named = (plan.method, str(plan.sites), plan.trust, f"{plan.budget.epsilon:g}")
        figures = (forecast.exchanges, "{:.0f}"), (forecast.messages, "{:.0f}"), (forecast.epsilon, "{:.4g}")
        rounds.add_row(*named, *(_span(*figure) for figure in figures))
        kibibytes = (forecast.down, "{:.1f}"), (forecast.up, "{:.1f}"), (forecast.stored, "{:.0f}")
        sizes.add_row(*named, *(_span(*figure, 1024) for figure in kibibytes))
        for kind in forecast.noise:
            what = f"{kind.verb} {kind.kind}" + (" (an example)" if forecast.chosen else "")
            noise.add_row(*named, what, str(kind.times), str(kind.cells), _span(kind.std, "{:.4g}"))
    console.print(rounds)
    console.print(sizes)
    tell(
        "A range is least-typical-most; it depends on the rows or on the sites drawn into cohorts. Bytes are those "
        "of fedsynth's messages, without TLS.\n"
    )
    console.print(noise)
    for forecast in forecasts:
        for remark in _remarks(forecast):
            tell(f"\n{forecast.plan.method}{remark}")


def _remarks(forecast: Forecast) -> Iterator[str]:
    """Yield what stands out of the noise of a run, and what it asks of compute servers and of sites' policies.

    Each goes on after the name of the method.
    """
    from fedsynth.federation.policy import Policy
    from fedsynth.models.card import smallest_groups

    if smallest := "; ".join(smallest_groups(forecast.resolution.value, forecast.resolution.crossing)):
        yield f": {smallest}"
    for warning in forecast.resolution.warnings:
        yield f": WARNING: {warning}"
    if forecast.servers.high:
        yield (
            f": the three servers send {_span(forecast.servers, '{:.1f}', 2**20)} MiB together, and each needs "
            f"{_span(forecast.servers_seconds, '{:.0f}')} CPU seconds for selections (as measured for 161 candidates)."
        )
    if forecast.largest > Policy.largest_message:
        yield (
            f" sends messages of {forecast.largest / 2**20:.1f} MiB, more than sites accept by default: make the "
            "network smaller, or have every site's steward write largest_message = "
            f"{forecast.largest * 5 // 4} into [policy] of site.toml"
        )
    if forecast.stored.high > Policy.largest_stored:
        yield (
            " makes a site whose rows are counted or streamed store up to "
            f"{forecast.stored.high / 2**20:.0f} MiB, more than sites do by default: every such site's steward writes "
            f"largest_stored = {math.ceil(forecast.stored.high)} into [policy] of site.toml"
        )
    if missing := sorted({slot.verb for slot in forecast.plan.slots} - set(Policy.verbs)):
        yield (
            " asks questions that sites do not answer by default: every site's steward writes "
            f"verbs = {json.dumps([*Policy.verbs, *missing])} into [policy] of site.toml"
        )


def _tell_advice(found: AdviceTable, setting: str, wanted: float | None) -> None:
    from rich.table import Table

    console = _console()
    errors_ = Table(title=f"{found.rows:,} rows, {setting}", box=None)
    errors_.add_column("method", no_wrap=True)
    errors_.add_column("trust", no_wrap=True)
    for heading in ("1-way error", "2-way error"):
        errors_.add_column(heading, justify="right", min_width=len("(0.000-0.000)"))
    errors_.add_column("smallest cell", justify="right")
    if wanted is not None:
        errors_.add_column(f"for a 2-way error of {wanted:g}")
    errors_.add_column("verdict", min_width=len("dependence"))
    for one in found.methods:
        least = one.resolution and (one.resolution.crossing or one.resolution.value)
        cell = f"{least:,.0f} rows" if least else ""
        needed = [one.search] if wanted is not None else []
        errors_.add_row(one.method, one.trust, _error(one.one_way), _error(one.two_way), cell, *needed, one.verdict)
    console.print(errors_)
    for one in found.methods:
        for warning in one.resolution.warnings if one.resolution else ():
            tell(f"\nWARNING: {one.method}: {warning}")
    tell(
        f"\nThese figures are of {found.tables} random tables of {found.made_rows:,} rows made from the schema. "
        "No real row was read, and real rows may do better or worse. Errors are mean L1 distances of marginals (0 to "
        "2): the median and the range over the random tables. The smallest cell is twice the noise of a released "
        "table: smaller counts carry no information. "
        + ("" if found.complete else "Time ran out before all runs were done; --seconds allows more. ")
    )


def _error(of: ForecastRange | None) -> str:
    return "" if of is None else f"{of.typical:.3f} ({of.low:.3f}-{of.high:.3f})"


def _span(of: ForecastRange, form: str, unit: float = 1.0) -> str:
    low, typical, high = (form.format(value / unit) for value in (of.low, of.typical, of.high))
    return typical if of.settled else f"{low}-{typical}-{high}"


def _tables(most: Extent) -> str:
    """Return the largest tables of a planned question in words."""
    columns = ("" if most.order == 1 else "at most ") + errors.number_of(most.order, "column")
    return f"{columns} each, over {most.columns} in all, with at most {most.cells:,} cells together"


def _sampled(weakest: SampledGaussian) -> str:
    """Return the weakest release of a planned question on sampled rows in words."""
    steps = "1 step" if weakest.steps == 1 else f"at most {weakest.steps} steps"
    return f"{steps}, with at most {weakest.rate:.3g} of the rows and noise of at least {weakest.multiplier:.4g}"


def _plan_text(made: Agreement) -> str:
    settings = "".join(f", {name} = {value}" for name, value in made.trust_options.items())
    delta = f" at delta = {in_full(made.budget.delta)}" if made.budget.delta else ""
    lines = [
        f"plan {made.digest}",
        f"{made.method} over {errors.number_of(made.sites, 'site')}, trust {made.trust}{settings}, "
        f"schema {made.schema[:12]}",
        f"protects a person with up to {errors.number_of(made.unit.rows, 'row')} at each of up to "
        f"{errors.number_of(made.unit.sites, 'site')}",
        f"at most epsilon = {in_full(made.budget.epsilon)}{delta} ({made.budget.measure} = "
        f"{rounded_up(made.budget.amount)}); one run may ask one site at most:",
    ]
    if made.guarantee != made.budget:
        lines.insert(
            -1,
            "all its noise is Gaussian: exact accounting gives epsilon = "
            f"{rounded_up(made.guarantee.epsilon)} for a run that follows the plan",
        )
    lines += _slot_lines(made)
    if made.answers:
        lines.append("beside the table, it answers:")
        lines += [f"  {words}" for words in named("fedsynth.answers.declared:words_of")(made.answers)]
    if made.trust == "trusted":
        lines.append(
            "under the trust trusted the coordinator sees each site's exact counts: the plan bounds what is released, "
            "and not what the coordinator can read"
        )
    return "\n".join(lines)


def _slot_lines(made: Agreement) -> list[str]:
    """Return a line for each planned question, with its price, and one on what they cost together.

    Prices add up. With headroom they are limits of single questions, which no run reaches together: a site stops it at
    the budget.
    """
    measure, whole = made.budget.measure, made.budget.amount
    prices = [slot.times * slot.price for slot in made.slots]
    lines = []
    for slot, price in zip(made.slots, prices, strict=True):
        each = f"{measure} {rounded_up(slot.price)} each"
        lines.append(
            f"  {slot.times:4d} x {slot.verb} {slot.kind} ({slot.release}) for up to {each}, {rounded_up(price)} in all"
            + ("" if slot.weakest is None else f"\n         for {_sampled(slot.weakest)}")
            + ("" if slot.extent is None else f"\n         for tables of {_tables(slot.extent)}")
        )
    if not prices:
        return lines
    total = math.fsum(prices)
    if total <= whole * ROUNDING:
        return [*lines, f"together {measure} {rounded_up(total)}, {total / whole:.1%} of the budget"]
    return [
        *lines,
        f"these limits leave room for what answers decide and are not spent together: they add up to {measure} "
        f"{rounded_up(total)}, and each site ends a run at {rounded_up(whole)}",
    ]
