"""Jobs: everything that determines a run except the rows and the noise, as in ``run.toml`` and ``job.toml``."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from fedsynth.cliques import Workload, all_marginals, random_workload
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported, nearest
from fedsynth.federation.names import check_site_name
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.trust import Trust, settings_of
from fedsynth.files import Records, parse_toml, read_text, refuse_format
from fedsynth.keys import KEY_BYTES
from fedsynth.methods import Method, find_method
from fedsynth.methods.registry import options_of, read_options
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.schema import Schema
from fedsynth.terms import Terms

DEMO_DATA = "demo:rand-hie"
FORMATS = ("csv", "parquet")
FORMAT = 1  # of job.toml and run.toml; files written by hand may omit it
_MARK = "fedsynth_job"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SIMULATED = ("data", "records", "sites", "partition", "seed", "person", "holdout", "target")


@dataclass(frozen=True)
class Deployment:
    """The part of a job about a federation of real sites: the section ``[deployment]`` of ``job.toml``.

    ``run`` names the run in every request; an interrupted run resumes under this name. ``sites`` are the names of all
    sites, of which ``min_sites`` (``None``: all) must answer in every round; ``deadline`` limits a round, in seconds.
    ``plan`` is the digest (hex) of the plan, the list of questions with their privacy costs that the sites approved;
    empty without one. ``peers`` maps names of sites to their public identity keys (hexadecimal).
    """

    run: str
    sites: tuple[str, ...]
    min_sites: int | None = None
    deadline: float = 600.0
    plan: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse invalid settings before any site is asked."""
        if not _RUN.fullmatch(self.run):
            raise FedsynthError(
                f"{self.run!r} is not a valid run name; use up to 63 letters, digits, '.', '_' and '-', first a letter "
                "or digit"
            )
        for name in (*self.sites, *self.peers):
            check_site_name(name)
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise FedsynthError(f"[deployment] sites = {list(self.sites)}; name every site, and each only once")
        if not 1 <= self.least <= len(self.sites) or not self.deadline > 0:
            raise FedsynthError(f"min_sites must lie between 1 and {len(self.sites)}, and deadline must be positive")

    @property
    def least(self) -> int:
        """Number of sites that must answer in every round: ``min_sites``, by default all."""
        return len(self.sites) if self.min_sites is None else self.min_sites

    @property
    def identities(self) -> dict[str, bytes]:
        """The public identity key (32 bytes) of each site, with which it signs its replies.

        Raises :class:`~fedsynth.errors.FedsynthError` if ``peers`` lacks one, or holds something else.
        """
        if lacking := [site for site in self.sites if site not in self.peers]:
            raise FedsynthError(
                f"[deployment.peers] of the job lacks {', '.join(lacking)}; without a site's identity key its replies "
                "cannot be verified: run `fedsynth deploy admit`, which writes it there"
            )
        keys = {}
        for site in self.sites:
            try:
                keys[site] = bytes.fromhex(self.peers[site])
            except ValueError:
                keys[site] = b""
            if len(keys[site]) != KEY_BYTES:
                raise FedsynthError(
                    f"[deployment.peers] {site} must be an identity key, {2 * KEY_BYTES} hex digits; run "
                    "`fedsynth deploy admit`, which writes it there"
                )
        return keys


@dataclass(frozen=True)
class Job:
    """All settings of a run, as in ``run.toml`` and ``job.toml``; only rows and noise are not determined by them.

    ``method`` names a method (or ``package.module:Class``), and ``options`` are its options. ``epsilon`` and ``delta``
    limit the privacy cost of all releases together; ``epsilon = inf`` releases everything without noise: NOT PRIVATE.
    ``trust`` names the trust model, which decides who adds the noise, and ``trust_options`` are its parameters. The
    unit of protection is a person with at most ``rows_per_person`` rows at each of ``sites_per_person`` sites;
    ``public_sizes`` treats the sites' numbers of rows as public. ``schema`` is a schema file. ``workload`` lists the
    marginals to preserve (:func:`parse_workload`; empty: the method's own choice). ``rows`` is the number of synthetic
    rows (``None``: the estimated number of real ones), and ``format`` that of their file, csv or parquet.
    With ``spreadsheet_safe``, a run also writes a copy of them to open in a spreadsheet, where no cell runs as a
    formula.

    The other entries are for simulated runs. ``data`` is a file, a database's address, or ``demo:rand-hie`` for the
    table of the demo extra, which has a schema of its own; from other data, a schema is drafted without ``schema``.
    ``records`` is the kind of a CSV file: of ``lines`` (also if it is ``None``), or ``rfc4180``.
    ``sites`` is the number of sites, and ``partition`` says how the rows are split over them, as on the command line.
    ``seed`` (0 or more) fixes the partition, the sampling and the noise; with ``None`` the noise comes from the
    operating system and a run cannot be repeated bit for bit. If ``person`` names a column, at most ``rows_per_person``
    rows of each person are used, and none without a person. ``holdout`` is the share of rows that no site gets, kept
    for the evaluation, and ``target`` the column that classifiers learn to predict there. If real sites hold the rows,
    ``deployment`` takes the place of these entries.

    In a file, relative paths start at its folder.
    """

    method: str
    epsilon: float
    delta: float
    data: str = ""
    records: Records | None = None
    schema: str = ""
    sites: int = 10
    partition: str = "iid"
    trust: str = "trusted"
    seed: int | None = None
    rows: int | None = None
    workload: str = ""
    public_sizes: bool = False
    rows_per_person: int = 1
    sites_per_person: int = 1
    person: str = ""
    holdout: float = 0.0
    target: str = ""
    format: str = "csv"
    spreadsheet_safe: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    trust_options: Mapping[str, Any] = field(default_factory=dict)
    deployment: Deployment | None = None

    def __post_init__(self) -> None:
        """Refuse invalid settings before rows are read or a site is asked."""
        if min(self.rows_per_person, self.sites_per_person) < 1:
            raise InvalidParameter("rows_per_person and sites_per_person must be at least 1")
        if self.seed is not None and self.seed < 0:
            raise InvalidParameter(f"seed must be a whole number of at least 0, not {self.seed}")
        if self.format not in FORMATS:
            raise InvalidParameter(f"format = {self.format!r}: {nearest(self.format, FORMATS)}")
        if self.deployment is None:
            return
        self._check_min_sites(self.deployment)
        if simulated := [name for name in _SIMULATED if getattr(self, name) != getattr(Job, name)]:
            raise InvalidParameter(
                f"{', '.join(simulated)} only apply to simulated runs; delete them, since real sites hold the rows"
            )

    def _check_min_sites(self, deployment: Deployment) -> None:
        """Refuse a ``min_sites`` with which a secure sum that all sites began could not be completed."""
        many, least = len(deployment.sites), deployment.least
        if self.trust != "secure" or least == many:
            return
        from fedsynth.secure.site import SecureSum

        def needed(trust: Trust) -> int:
            assert isinstance(trust, SecureSum)
            return trust.with_roster({name: name.encode() for name in deployment.sites}).threshold(many)

        if least >= (enough := needed(trust_named(self.trust, self.trust_options))):
            return
        honest = [
            number
            for number in range(1, many + 1)
            if needed(trust_named(self.trust, {**self.trust_options, "min_honest": number})) <= least
        ]
        to = f" to {many}" if enough < many else ""
        also = f", or min_honest = {honest[0]} under [trust_options] if so many surely do not collude" if honest else ""
        raise FedsynthError(
            f"min_sites = {least} is too few under the trust 'secure': a sum that {many} sites begin needs {enough} of "
            f"them to its end; set min_sites = {enough}{to}{also}"
        )

    @property
    def budget(self) -> Budget:
        """The (epsilon, delta) limit on the total cost of all releases to one person."""
        return budget_of(self.epsilon, self.delta)

    @property
    def unit(self) -> Unit:
        """The unit of protection: a person with at most so many rows at each of so many sites."""
        return Unit(self.rows_per_person, self.sites_per_person)

    @property
    def deployed(self) -> Deployment:
        """The deployment; raises :class:`~fedsynth.errors.Unsupported` for the job of a simulation, which has none."""
        if self.deployment is None:
            raise Unsupported(
                "the job has no [deployment], so it names no sites: `fedsynth deploy init` writes one, and `fedsynth "
                "simulate --config job.toml` runs the job without"
            )
        return self.deployment

    def terms(self, schema: Schema) -> Terms:
        """Return the run's terms under ``schema``: what is protected, and by what."""
        settings = settings_of(trust_named(self.trust, self.trust_options))
        return Terms(schema, self.budget, self.trust, settings, self.unit, self.public_sizes)

    def digest(self, schema: Schema) -> str:
        """Return the SHA-256 (hex) of job and schema, neither of which may change when a run is resumed."""
        return hashlib.sha256(f"{dataclasses.replace(self, schema='').to_toml()} {schema.digest}".encode()).hexdigest()

    def build_method(self, schema: Schema | None = None) -> Method:
        """Return the job's method with its options and its workload set, ready for ``fit``.

        Without a ``schema``, options that name columns and the workload stay unset, which suffices to check the others.
        A method with an unset option ``target`` gets the job's target. Raises :class:`~fedsynth.errors.Unsupported` for
        an unknown method or option and for a workload that the method cannot take,
        :class:`~fedsynth.errors.InvalidParameter` for an invalid value of an option, and
        :class:`~fedsynth.errors.SchemaError` for an unknown column.
        """
        kind: type[Method] = find_method(self.method).kind
        options = dict(self.options)
        named = schema is not None and self.target in schema.names
        if named and "target" not in options and options_of(kind).get("target", "") is None:
            options["target"] = self.target
        method = kind(**read_options(self.method, kind, options, schema))
        if not self.workload:
            return method
        if not any(one.name == "workload" for one in dataclasses.fields(method)):  # type: ignore[arg-type]
            raise Unsupported(f"{self.method} measures a fixed set of marginals; leave --workload out")
        if schema is None:
            return method
        workload = parse_workload(self.workload, len(schema.sizes))
        return dataclasses.replace(method, workload=workload)  # type: ignore[type-var]

    def build_trust(self) -> Trust:
        """Return the trust model (who adds the noise) with its parameters and, in a deployment, with the sites' keys.

        Raises :class:`~fedsynth.errors.Unsupported` for an unknown name, and :class:`~fedsynth.errors.InvalidParameter`
        for an unknown or invalid parameter.
        """
        trust = trust_named(self.trust, self.trust_options)
        peers = {} if self.deployment is None else self.deployment.peers
        return trust.with_roster({name: bytes.fromhex(key) for name, key in peers.items()}) if peers else trust

    def to_toml(self) -> str:
        """Return the job as TOML, without entries that are unset or do not apply to this kind of run."""
        left_out = () if self.deployment is None else _SIMULATED
        return tomli_w.dumps({name: value for name, value in _said(asdict(self)).items() if name not in left_out})

    def to_file(self) -> str:
        """Return the text of a job file: the number of the format, then the job as TOML."""
        return f"{_MARK} = {FORMAT}\n{self.to_toml()}"

    @classmethod
    def from_toml(cls, text: str, what: str = "the run file") -> Job:
        """Return the job that a TOML text describes; its section ``[made]``, a record of a finished run, is ignored.

        ``what`` names the text in error messages. Raises :class:`~fedsynth.errors.FedsynthError` for text that is not
        TOML, is of another format, or has an unknown or invalid entry.
        """
        content = parse_toml(text, what)
        content.pop("made", None)
        refuse_format(
            content.pop(_MARK, FORMAT),
            FORMAT,
            what,
            "use the fedsynth that wrote it, or write the job again with this one",
        )
        _refuse_misplaced(what, content)
        deployment = content.get("deployment", {})
        _refuse_unknown(what, content, cls)
        _refuse_unknown(f"{what}, [deployment]", deployment if isinstance(deployment, dict) else {}, Deployment)
        try:
            return msgspec.convert(content, cls)
        except msgspec.ValidationError as error:
            raise FedsynthError(f"{what} does not describe a run: {error}") from error

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read a job file; relative paths in it, which start at its folder, are made relative to the current directory.

        Raises :class:`~fedsynth.errors.FedsynthError` for a file that does not describe a job, and ``OSError``.
        """
        home = path.parent.resolve()
        return cls.from_toml(read_text(path), str(path))._with_paths(lambda name: os.path.relpath(home / name))

    def relative_to(self, folder: Path) -> Job:
        """Return the job as it must be written into a file in ``folder``: with relative paths that start there."""
        return self._with_paths(lambda name: os.path.relpath(Path(name).resolve(), folder.resolve()))

    def _with_paths(self, moved: Callable[[str], str]) -> Job:
        """Return the job with its relative paths ``moved``."""
        paths = {"schema": self.schema, "data": "" if _is_address(self.data) else self.data}
        found = {name: moved(path) for name, path in paths.items() if path and not os.path.isabs(path)}
        return dataclasses.replace(self, **found)  # type: ignore[arg-type]


def _is_address(data: str) -> bool:
    return data == DEMO_DATA or "://" in data


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are set, also in nested tables."""
    kept = {name: _said(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in kept.items() if value is not None and value not in ("", {})}


def _refuse_misplaced(what: str, content: Mapping[str, Any]) -> None:
    """Raise an error for an entry in the wrong section, such as one appended to a file, where the last section is."""
    head = {one.name for one in dataclasses.fields(Job)}
    deployed = {one.name for one in dataclasses.fields(Deployment)}
    tables = {name: of for name, of in content.items() if isinstance(of, dict)}
    deployment = tables.get("deployment", {})
    listed = deployment.get("sites", [])
    sites = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    peers = peers if isinstance(peers := deployment.get("peers", {}), dict) else {}
    sections: list[tuple[str, Iterable[str]]] = [
        ("", set(content) - head),
        ("deployment", set(deployment) - deployed),
        ("deployment.peers", set(peers) - set(sites)),
        ("trust_options", tables.get("trust_options", {})),
        ("options", _no_options(content.get("method"), set(tables.get("options", {})) & (head | deployed))),
    ]
    for section, names in sections:
        for name in sorted(set(names) & (head | deployed)):
            here = f"in the section [{section}]" if section else "before the first section"
            inside = name in deployed and (name not in head or "deployment" in content)
            home = "under [deployment]" if inside else "before the first [section] of the file"
            raise FedsynthError(f"{what}: {name!r} stands {here}; move that line to its place, {home}")


def _no_options(method: object, names: set[str]) -> set[str]:
    """Return those of the ``names`` that are no options of the method."""
    return names - set(options_of(find_method(method).kind)) if names and isinstance(method, str) else set()


def _refuse_unknown(what: str, content: Mapping[str, Any], kind: Any) -> None:
    known = {one.name for one in dataclasses.fields(kind)}
    if unknown := sorted(set(content) - known):
        raise FedsynthError(f"{what}: unknown entries {unknown}; {nearest(unknown[0], sorted(known), 'known are')}")


def budget_of(epsilon: float, delta: float) -> Budget:
    """Return the budget of these numbers; with an infinite epsilon, the one without limit and without noise.

    Raises :class:`~fedsynth.errors.InvalidParameter` for numbers that are no guarantee, such as an epsilon of 0.
    """
    return Budget.none() if math.isinf(epsilon) and epsilon > 0 else Budget(epsilon, delta)


def parse_workload(text: str, columns: int) -> Workload:
    """Return the marginals that a text such as ``3:64`` asks for, as tuples of column positions.

    The text is ``ORDER``, ``ORDER:COUNT`` or ``ORDER:COUNT:SEED``: all sets of ORDER columns, or COUNT of them drawn at
    random by SEED (default 0); all as well if COUNT is 0 or there are fewer. ``columns`` is the number of columns; a
    larger ORDER counts as ``columns``. Raises :class:`~fedsynth.errors.Unsupported` for any other text.
    """
    try:
        order, count, seed = ([int(part) for part in text.split(":")] + [0, 0])[:3]
        if order < 1 or min(count, seed) < 0 or text.count(":") > 2:
            raise ValueError
    except ValueError as error:
        raise Unsupported(
            f"workload {text!r} is not of the form ORDER[:COUNT[:SEED]]; write 2 for all pairs of columns, or 3:64 for "
            "64 random sets of three columns"
        ) from error
    order = min(order, columns)
    return random_workload(columns, order, count, seed) if count else all_marginals(columns, order)


def parse_option(text: str) -> tuple[str, Any]:
    """Return name and value of an option written as ``name=value``, as after ``--set``.

    The value becomes a number, ``True`` or ``False``, or a text: text in quotes (TOML), or a bare word. Raises
    :class:`~fedsynth.errors.InvalidParameter` if the equals sign, the name or the value is missing.
    """
    name, mark, value = text.partition("=")
    if not mark or not name.strip() or not value.strip():
        raise InvalidParameter(
            f"expected NAME=VALUE, not {text!r}; for example --set rounds=5, or --trust-set min_honest=3"
        )
    try:
        found = tomllib.loads(f"value = {value}")
    except ValueError:
        return name.strip(), value.strip()
    plain = len(found) == 1 and isinstance(found["value"], str | int | float)
    return name.strip(), found["value"] if plain else value.strip()
