"""Jobs: everything that determines a run except the rows and the noise, as in ``run.toml`` and ``job.toml``."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import tomli_w
from msgspec import Meta
from msgspec.structs import fields, replace

from fedsynth.cliques import Workload, all_marginals, random_workload
from fedsynth.errors import FedsynthError, InvalidParameter, Unsupported, nearest
from fedsynth.federation.names import check_site_name
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.query import Extent
from fedsynth.federation.trust import Trust, settings_of
from fedsynth.files import Records, parse_toml, read_text, refuse_format
from fedsynth.keys import KEY_BYTES
from fedsynth.methods import Method, find_method
from fedsynth.methods.registry import options_of, read_options
from fedsynth.plugins import named
from fedsynth.privacy.cost import Budget, Unit, require_delta
from fedsynth.schema import Schema
from fedsynth.settings import Settings, read_settings
from fedsynth.terms import Terms
from fedsynth.trusts import default_trust

DEMO_DATA = "demo:rand-hie"
FORMAT = 1  # of job.toml and run.toml; files written by hand may omit it
_MARK = "fedsynth_job"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DECLARED, _QUESTIONED = "fedsynth.answers.declared:read_declared", "fedsynth.answers.asking:Questioned"
ASKED = ("question", "criterion", "cuts", "clips", "answer_share")
"""Fields of a job about declared questions, which files alone have."""
_SIMULATED = ("data", "site", "records", "sites", "partition", "seed", "person", "holdout", "target")


class Deployment(Settings, frozen=True):
    """The part of a job about a federation of real sites: the section ``[deployment]`` of ``job.toml``.

    Raises :class:`~fedsynth.errors.FedsynthError` for settings that contradict each other.
    """

    run: str
    """Name of the run in every request; an interrupted run resumes under this name."""
    sites: tuple[str, ...]
    """Names of all sites."""
    min_sites: int | None = None
    """Number of sites that must answer in every round. Default: all."""
    deadline: float = 600.0
    """Limit on the duration of a round, in seconds."""
    plan: str = ""
    """Digest (hex) of the plan that the sites approved: the list of questions with their privacy costs. Empty without
    one."""
    peers: Mapping[str, str] = {}
    """Public identity key (hexadecimal) of each site by name; `fedsynth deploy admit` writes them."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """``min_sites``, by default the number of all sites."""
        return len(self.sites) if self.min_sites is None else self.min_sites

    @property
    def identities(self) -> dict[str, bytes]:
        """The public identity key (32 bytes) of each site.

        Raises :class:`~fedsynth.errors.FedsynthError` if ``peers`` lacks one, or holds something else.
        """
        if lacking := [site for site in self.sites if site not in self.peers]:
            raise FedsynthError(
                f"[deployment.peers] of the job lacks {', '.join(lacking)}; without a site's identity key its replies "
                "cannot be verified: run `fedsynth deploy admit`, which writes it there"
            )
        return {site: self.identity(site) for site in self.sites}

    def identity(self, site: str) -> bytes:
        """Return the identity key of one of the ``peers``; raises :class:`~fedsynth.errors.FedsynthError` for none."""
        try:
            key = bytes.fromhex(self.peers[site])
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise FedsynthError(
                f"[deployment.peers] {site} must be an identity key, {2 * KEY_BYTES} hex digits; run "
                "`fedsynth deploy admit`, which writes it there"
            )
        return key


class Job(Settings, frozen=True):
    """All settings of a run, as in ``run.toml`` and ``job.toml``; only rows and noise are not determined by them.

    Those in :data:`_SIMULATED` are for simulated runs; if real sites hold the rows, ``deployment`` takes their place.
    In a file, relative paths start at its folder.

    Raises :class:`~fedsynth.errors.InvalidParameter` for settings out of bounds or that do not apply.
    """

    method: str
    """Method that makes the synthetic table: a name listed by `fedsynth methods`, or package.module:Class for one of
    your own. auto is one method, which suits most tables; it does not choose among the others."""
    epsilon: float
    """Epsilon of the guarantee: how much the result may reveal about one person. Smaller: more privacy and more noise;
    usual values are 0.1 to 10. inf: no noise at all, NOT PRIVATE."""
    delta: float
    """Delta of the guarantee: roughly the probability that epsilon fails to hold. Choose well below 1 / number of
    persons, such as 1e-6. 0: pure differential privacy, with Laplace noise."""
    data: str = ""
    """Table to split over the sites: CSV or Parquet file, or postgresql://USER@HOST/DB?table=NAME (without a password:
    put that into ~/.pgpass). Required, except with --config or --partition synthfs:B."""
    records: Records | None = None
    """Kind of a CSV file. lines: no cell holds a newline; each line is a record, or is left out by itself if it is
    malformed. rfc4180: cells in quotes may hold newlines; the whole file must be valid RFC 4180, or none of it is read.
    Default: lines."""
    site: Mapping[str, str] = {}
    """Rows of one site as NAME=PLACE, in place of --data; repeat it for each site. PLACE is a table as for --data, or a
    source file (.toml) that declares the form of a site's own export."""
    schema: str = ""
    """Schema file (TOML): name, kind and public bounds or categories of each column, as all sites agreed; `fedsynth
    schema draft` makes a first one. Without it, `simulate` and `compare` draft one from the data, which the guarantee
    does not cover."""
    sites: Annotated[int, Meta(ge=1)] = 10
    """Number of sites over which the rows are split."""
    partition: str = "iid"
    """How the rows are split over the sites. iid: at random, in equal parts; quantity:A: at random, in unequal parts;
    label-skew:A: each class of the label (the target, else the last column) in unequal shares;
    capped-label-skew:A: the same, but a site that has its equal share of the rows gets no further classes; column:NAME:
    all rows with the same value (or bin) of that column at one site; values:NAME: one site for each of the first values
    of that column (in the schema, else the most common ones), without the rows of other values; cluster: similar rows
    together; synthfs:B (simulate only): generated rows, without --data, whose columns are distributed differently at
    each site. With capped-label-skew and cluster, one row more moves others, so that the result is not for publication.
    A and B are each a positive number such as 0.5: the smaller, the more uneven. docs/cli.md explains each."""
    trust: str = ""
    """Trust model: who sees exact counts and who adds the noise. trusted: the server sees each site's counts and adds
    the noise; local: each site adds all the noise to its own counts, so nobody else is trusted and results are
    noisiest; secure: secure aggregation, each site adds a part of the noise and the server sees only the noisy sum;
    three-servers: three servers hold secret shares of the counts, which none can read alone, and add the noise
    together. Default: secure for three sites and more, local for two, trusted for one."""
    seed: Annotated[int, Meta(ge=0)] | None = None
    """Whole number that fixes every random choice, the noise included, so that the run can be repeated. It is therefore
    not private: never publish such a run. Default: no seed; noise from the operating system."""
    rows: Annotated[int, Meta(ge=1)] | None = None
    """Number of synthetic rows; default: the estimated number of rows of all sites together."""
    workload: str = ""
    """Sets of columns whose joint counts matter most, as ORDER[:COUNT[:SEED]]: 2 is all pairs, 3:64 is 64 sets of three
    columns, drawn at random by SEED (default 0). For auto, aim and the flaim family. Default: all pairs, with equal
    weights; for auto no set in particular."""
    weak_delta: bool = False
    """The yes that a delta above 0.01 needs: with so large a delta, even publishing that share of the rows as they are
    would satisfy the guarantee."""
    unproved: tuple[str, ...] = ()
    """Class of another package (package.module:Class) on which the guarantee may rest although fedsynth does not prove
    it: of a query, trust, method or source. One that is not named here makes the result not for publication. Repeat it
    for several."""
    public_sizes: bool = False
    """Treat each site's number of rows as public knowledge, which the guarantee does not hide. Without it, methods that
    need the numbers pay for noisy ones with a part of the budget."""
    rows_per_person: Annotated[int, Meta(ge=1)] = 1
    """Largest number of rows that one person has at a site; all of them are protected together. A larger number means
    more noise. In a simulation, more than 1 needs --person."""
    sites_per_person: Annotated[int, Meta(ge=1)] = 1
    """Largest number of sites at which one person has rows; all of these rows are protected together. A larger number
    means more noise. In a simulation, more than 1 needs --person."""
    person: str = ""
    """Column that tells which person a row is about; it need not be in the schema. At most --rows-per-person rows of
    each person, counted over all sites, are used, and no rows without a person. Default: no rows are dropped, and the
    guarantee is for single rows."""
    holdout: float = 0.0
    """Share of the rows, at least 0 and below 1, that no site gets and on which the result is scored, e.g. 0.1 for a
    tenth."""
    target: str = ""
    """Column that classifiers (or regressors) learn to predict from the synthetic rows, for scores of their usefulness;
    needs --holdout. The method auto then spends more of the budget on that column. Without it, no such scores."""
    format: Literal["csv", "parquet"] = "csv"
    """Format of the file with the synthetic table."""
    spreadsheet_safe: bool = False
    """Write synthetic-spreadsheet.csv as well: a copy of the synthetic table for people who open it in a spreadsheet,
    with an apostrophe before each cell and column name that would run as a formula there (text that begins with =, +, -
    or @). `fedsynth report` reads the table itself, which stays as it is."""
    options: Mapping[str, Any] = {}
    """Option of the method as NAME=VALUE, e.g. rounds=5; repeat it for several. Options that are not set keep their
    defaults, which `fedsynth methods` lists."""
    trust_options: Mapping[str, Any] = {}
    """Parameter of the trust model as NAME=NUMBER; repeat it for several. Only secure has any: min_honest, the number
    of sites assumed not to collude with the server (default: more than half of all), and dropouts, the number of sites
    that may fail before a sum is complete: always fewer than half of min_honest (a larger number counts as that limit).
    Default: that limit; with more than 64 sites, where sites share masks with some others only, it may be just a
    twentieth of the sites: set dropouts if more may fail."""
    deployment: Deployment | None = None
    question: tuple[Mapping[str, Any], ...] = ()
    """Declared questions, a section [[question]] each: answered with intervals; docs/answers.md lists the kinds."""
    criterion: tuple[Mapping[str, Any], ...] = ()
    """Declared questions with a tolerance, a section [[criterion]] each, by which the synthetic table is judged."""
    cuts: Mapping[str, tuple[float, ...]] = {}
    """Points that divide a number for questions, by column: each begins a group."""
    clips: Mapping[str, tuple[float, float]] = {}
    """Bounds to which a number is clipped in the sums of questions, by column."""
    answer_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Share of the budget that questions and criteria get together, if there are any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.declared:
            named(_DECLARED)(self.declared)
        if self.site and self.deployment is None:
            self._check_sites()
        if not self.trust:
            sites = self.sites if self.deployment is None else len(self.deployment.sites)
            msgspec.structs.force_setattr(self, "trust", default_trust(sites))
        require_delta(self.budget.delta, weak_delta=self.weak_delta)
        if self.deployment is None:
            return
        self._check_min_sites(self.deployment)
        ours = {one.name: {} if one.default is msgspec.NODEFAULT else one.default for one in fields(Job)}
        if simulated := [name for name in _SIMULATED if getattr(self, name) != ours[name]]:
            raise InvalidParameter(
                f"{', '.join(simulated)} only apply to simulated runs; delete them, since real sites hold the rows"
            )

    def _check_sites(self) -> None:
        """Set the number of sites whose rows are named one by one; refuse what would split a table over them."""
        for name in self.site:
            check_site_name(name)
        given = {"data": self.data, "records": self.records, "partition": self.partition != "iid"}
        if others := [name for name, value in given.items() if value]:
            raise InvalidParameter(
                f"{', '.join(others)}: for one table that is split over sites; leave it out, as each site has its own"
            )
        msgspec.structs.force_setattr(self, "sites", len(self.site))

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
        """The (epsilon, delta) limit on the total cost."""
        return budget_of(self.epsilon, self.delta)

    @property
    def unit(self) -> Unit:
        """The unit of protection."""
        return Unit(self.rows_per_person, self.sites_per_person)

    @property
    def declared(self) -> dict[str, Any]:
        """The declared questions and criteria, their cuts, and their share of the budget; empty without any."""
        return {name: getattr(self, name) for name in ASKED} if self.question or self.criterion else {}

    def fitting(self, method: Method) -> Method:
        """Return what a run fits: the ``method``, or the method after the declared questions."""
        if not self.declared:
            return method
        asking: Method = named(_QUESTIONED)(named(_DECLARED)(self.declared), method)
        return asking

    def largest_questions(self, schema: Schema) -> Extent | None:
        """Return the largest tables of the declared questions; ``None`` without any."""
        if not self.declared:
            return None
        largest: Extent = named(_DECLARED)(self.declared).largest(schema)
        return largest

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
        """Return the run's terms under ``schema``."""
        settings = settings_of(trust_named(self.trust, self.trust_options))
        return Terms(schema, self.budget, self.trust, settings, self.unit, self.public_sizes)

    def digest(self, schema: Schema) -> str:
        """Return the SHA-256 (hex) of job and schema, neither of which may change when a run is resumed."""
        return hashlib.sha256(f"{replace(self, schema='').to_toml()} {schema.digest}".encode()).hexdigest()

    def build_method(self, schema: Schema | None = None) -> Method:
        """Return the job's method with its options, workload and target set, ready for ``fit``.

        Without a ``schema``, options that name columns and the workload stay unset, which suffices to check the others.
        Raises :class:`~fedsynth.errors.Unsupported` for an unknown method and for a workload that the method cannot
        take, and the errors of :func:`~fedsynth.methods.registry.read_options`.
        """
        kind: type[Method] = find_method(self.method).kind
        options = dict(self.options)
        known = schema is not None and self.target in schema.names
        if known and "target" not in options and options_of(kind).get("target", "") is None:
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
        """Return the trust model with its parameters and, in a deployment, with the sites' keys.

        Raises :class:`~fedsynth.errors.Unsupported` for an unknown name, and :class:`~fedsynth.errors.InvalidParameter`
        for an unknown or invalid parameter.
        """
        trust = trust_named(self.trust, self.trust_options)
        if self.deployment is None or not self.deployment.peers:
            return trust
        return trust.with_roster({name: self.deployment.identity(name) for name in self.deployment.peers})

    def to_toml(self) -> str:
        """Return the job as TOML, without entries that are unset or do not apply to this kind of run."""
        left_out = () if self.deployment is None else _SIMULATED
        return tomli_w.dumps(
            {name: value for name, value in _said(msgspec.to_builtins(self)).items() if name not in left_out}
        )

    def to_file(self) -> str:
        """Return the text of a job file: the number of the format, then the job as TOML."""
        return f"{_MARK} = {FORMAT}\n{self.to_toml()}"

    @classmethod
    def from_toml(cls, text: str, what: str = "the run file") -> Self:
        """Return the job of a TOML text, without its section ``[made]``; ``what`` names the text in messages.

        Raises :class:`~fedsynth.errors.FedsynthError` for text that is not TOML, is of another format, or has an
        unknown or invalid entry.
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
        return read_settings(cls, content, what)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a job file; relative paths in it start at its folder and are made relative to the current directory."""
        home = path.parent.resolve()
        return cls.from_toml(read_text(path), str(path))._with_paths(lambda name: _relative(home / name, Path.cwd()))

    def relative_to(self, folder: Path) -> Self:
        """Return the job as it must be written into a file in ``folder``: with relative paths that start there."""
        return self._with_paths(lambda name: _relative(Path(name).resolve(), folder.resolve()))

    def _with_paths(self, moved: Callable[[str], str]) -> Self:
        def placed(path: str) -> str:
            return path if not path or _is_address(path) or os.path.isabs(path) else moved(path)

        site = {name: placed(path) for name, path in self.site.items()}
        return replace(self, schema=placed(self.schema), data=placed(self.data), site=site)


def _relative(path: Path, folder: Path) -> str:
    """Return ``path`` relative to ``folder``, or as it is if it lies on another drive of Windows."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return str(path)


def _is_address(data: str) -> bool:
    return data == DEMO_DATA or "://" in data


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are set, also in nested tables."""
    kept = {name: _said(value) if isinstance(value, dict) else value for name, value in fields.items()}
    return {name: value for name, value in kept.items() if value is not None and value not in ("", {}, [])}


def _refuse_misplaced(what: str, content: Mapping[str, Any]) -> None:
    """Raise an error for an entry in the wrong section, such as one appended to a file, where the last section is."""
    head, deployed = set(Job.__struct_fields__), set(Deployment.__struct_fields__)
    tables = {name: of for name, of in content.items() if isinstance(of, dict)}
    deployment = tables.get("deployment", {})
    listed = deployment.get("sites", [])
    sites = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    peers = peers if isinstance(peers := deployment.get("peers", {}), dict) else {}
    sections: list[tuple[str, Iterable[str]]] = [
        ("", set(content) - head),
        ("deployment", set(deployment) - deployed - {"site"}),  # there, it means sites
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


def declared_in(content: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return the settings of a job in ``content``, which has nothing but declared questions and what belongs to them.

    ``where`` begins the message of an error. Raises :class:`~fedsynth.errors.InvalidParameter` for other entries.
    """
    if unknown := sorted(set(content) - set(ASKED)):
        raise InvalidParameter(f"{where}{', '.join(unknown)} is unknown; {nearest(unknown[0], ASKED, 'known are')}")
    if content and not {"question", "criterion"} & set(content):
        raise InvalidParameter(f"{where}no question is declared; add a section [[question]] or [[criterion]]")
    return dict(content)


def budget_of(epsilon: float, delta: float) -> Budget:
    """Return the budget of these numbers; with an infinite epsilon, the one without limit and without noise.

    Raises :class:`~fedsynth.errors.InvalidParameter` for numbers that are no guarantee, such as an epsilon of 0.
    """
    budget = Budget(epsilon, delta)
    return Budget.none() if budget.exact else budget


def parse_workload(text: str, columns: int) -> Workload:
    """Return the marginals that a text such as ``3:64`` asks for, as tuples of positions of ``columns`` columns.

    The text is ``ORDER``, ``ORDER:COUNT`` or ``ORDER:COUNT:SEED``: all sets of ORDER columns, or COUNT of them drawn at
    random by SEED (default 0); all as well if COUNT is 0 or there are fewer. A larger ORDER counts as ``columns``.
    Raises :class:`~fedsynth.errors.Unsupported` for any other text.
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
