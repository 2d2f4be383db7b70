"""Simulated federations of a job, and the fit of its method, alike from Python and from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedsynth.data.sources import addresses, plugin_of
from fedsynth.federation.agreement import Agreement
from fedsynth.federation.federation import Federation
from fedsynth.federation.simulate import federate
from fedsynth.federation.trust import Trust
from fedsynth.methods import Method
from fedsynth.methods.registry import declared, rest_on_method
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table
from fedsynth.runs.job import Job
from fedsynth.runs.limitations import with_limitations
from fedsynth.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


def simulated(
    job: Job,
    method: Method,
    schema: Schema,
    rows: Mapping[str, pd.DataFrame | Table] | Sequence[Table],
    trust: Trust,
    *,
    sources: Iterable[object] = (),
    person: str = "",
    transcript: Path | None = None,
    progress: Progress = ignore_progress,
) -> Federation:
    """Return the federation of a job over the ``rows`` of its sites in this process; it has asked nothing yet.

    ``sources`` are the places where the rows come from, of which the statement names those of other packages. The other
    arguments, and the errors, are those of :func:`~fedsynth.federation.simulate.federate`.
    """
    registered = declared(type(method), job.method)
    federation = federate(
        rows,
        schema,
        job.budget,
        trust=trust,
        unit=job.unit,
        person=person,
        seed=job.seed,
        public_sizes=job.public_sizes,
        exact=not registered.private,
        queries=registered.queries,
        unproved=job.unproved,
        weak_delta=job.weak_delta,
        transcript=transcript,
        progress=progress,
    )
    for source in sources:
        for address in addresses(source) if isinstance(source, str) else ():
            if place := plugin_of(address):
                federation.rest_on("source", address.partition("://")[0], place)
    who = (len(federation.sites), job.method, method, federation.agreement.roster)
    agreed = Agreement.of(federation.terms, *who, answers=job.declared)
    return replace(federation, agreed=agreed)


def fitted(job: Job, method: Method, federation: Federation) -> Synthesizer:
    """Ask a job's questions, fit its method, and return the synthesizer with its statement and limitations."""
    rest_on_method(method, federation)
    made = job.fitting(method).fit(federation)
    return with_limitations(made, federation, job.target or str(job.options.get("target", "")))
