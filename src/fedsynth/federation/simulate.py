"""A federation inside one process: the same sites, accounts and messages as in a deployed one, without the network."""

from __future__ import annotations

import hashlib
import hmac
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fedsynth.encoding import assembled, encode, encode_column
from fedsynth.errors import DataWarning, FedsynthError, SchemaError, Unsupported, listed
from fedsynth.federation.federation import Federation, begun
from fedsynth.federation.names import check_site_name
from fedsynth.federation.policy import VERBS, Policy
from fedsynth.federation.policy_file import trust_named
from fedsynth.federation.query import AnyQuery
from fedsynth.federation.site import Site, rows_digest
from fedsynth.federation.transport import InProcess, Recorded, Transport, was_begun
from fedsynth.federation.trust import Trust, settings_of
from fedsynth.federation.wire import LARGEST_MESSAGE
from fedsynth.files import write_private
from fedsynth.keys import Keys, SecretBytes
from fedsynth.persons import identify, keep_rows, keep_sites, require_limited, require_one_row
from fedsynth.privacy.book import Book, now
from fedsynth.privacy.cost import ONE_ROW, Budget, Unit, require_delta
from fedsynth.progress import Progress, ignore_progress
from fedsynth.rows import Table
from fedsynth.schema import Schema
from fedsynth.schema.columns import holds_text
from fedsynth.schema.misfits import Misfits, with_lines
from fedsynth.terms import Terms

if TYPE_CHECKING:
    import pandas as pd

_NO_CHANCE = 10  # equal tables with so many different rows are not equal by chance


def federate(
    tables: Mapping[str, pd.DataFrame | Table] | Sequence[pd.DataFrame | Table],
    schema: Schema,
    budget: Budget,
    *,
    trust: Trust | str,
    unit: Unit = ONE_ROW,
    person: str = "",
    seed: int | None = None,
    public_sizes: bool = False,
    exact: bool = False,
    queries: Sequence[type[AnyQuery]] = (),
    unproved: Sequence[str] = (),
    weak_delta: bool = False,
    transcript: Path | None = None,
    progress: Progress = ignore_progress,
    transport: Callable[[Sequence[Site]], Transport] = InProcess,
) -> Federation:
    """Return a simulated federation of one site per table, ready for ``Method.fit``.

    Parameters
    ----------
    tables
        One data frame (or encoded table) per site, by site name or as a list (``site-000``, ``site-001``, ...). A site
        may be empty. A table of a CSV file is read by :func:`~fedsynth.data.read.read_table`, which encodes it, or as
        text by :func:`fedsynth.read_table`. A
        :class:`~fedsynth.errors.DataWarning` for each site says which of its rows do not fit the schema and are left
        out, and which values are changed, with counts and a few values; others name the ignored columns and the empty
        sites.
    schema
        The public schema, agreed first. Frames are encoded under it: :class:`~fedsynth.errors.SchemaError` for a
        missing column, and for a site of whose rows none fits.
    budget
        Privacy budget: the bound on the total cost to one person, enforced by each site's own record of its charges.
        :meth:`Budget.none` is no noise at all.
    trust
        Who adds the noise: :class:`TrustedServer`, :class:`LocalNoise`, :class:`SecureSum` or :class:`ThreeServers`;
        or the name of a trust, such as "secure", with its default settings.
    unit
        Unit of protection: a person with at most so many rows at a site, at so many sites. More than one row needs
        ``person``, or encoded tables whose persons (:attr:`Table.persons <fedsynth.rows.Table.persons>`) have no more.
    person
        Column of the frames that tells persons apart; it need not be in the schema. No more rows of a person are used
        than ``unit`` says, at no more sites, and no rows without a person. Empty: single rows are protected.
    seed
        Seed of everything *including the noise*: reproducible, therefore not private, as the federation's privacy
        ``statement`` says. ``None`` takes noise from the operating system's entropy.
    public_sizes
        Treat each site's number of rows as public. Otherwise methods that need these numbers pay for noisy ones.
    exact
        Let sites also answer questions that ask for no noise, for baselines that are labelled as not private. Sites
        then enforce no budget; the server's ledger still limits the noisy releases.
    queries
        Classes of other packages' queries and selections, which the sites answer like fedsynth's own. The statement
        calls what they declare assumed.
    unproved
        Classes of other packages (``package.module:Class``) on which the guarantee may rest, of queries, trusts and
        methods: without that yes by name the result is not for publication.
    weak_delta
        The yes that a delta above .01 needs.
    transcript
        File that records the messages (:class:`~fedsynth.federation.transport.Recorded`). After an interruption, the
        same call resumes the run from it: recorded answers are not asked for again. Without a seed, the secret from
        which the noise is derived is stored beside it (:func:`~fedsynth.federation.simulate.secret_file`). Anyone with
        this secret could remove the noise, so delete it when the run is complete.
    progress
        ``progress(what, done, total)`` is called by methods of several rounds: ``done`` of the ``total`` steps of the
        task named ``what`` are complete.
    transport
        Makes the connection to the simulated sites; other ones than the default are for tests and dry runs.

    Warns (``UserWarning``) of sites with the same rows. Raises :class:`Unsupported` for no tables,
    :class:`InvalidParameter` for a site name that is not allowed, a weak delta and a unit that limits nobody, and
    :class:`SchemaError` for a table encoded under another schema. Raises :class:`FedsynthError` for a transcript of a
    run over other rows (not with a seed, where this goes unnoticed), and if the run then sends other questions than the
    transcript has: for another schema, budget or method.
    """
    require_delta(budget.delta, weak_delta=weak_delta)
    encoded = _encode(tables, schema, person, unit)
    if not encoded:
        raise Unsupported("a federation needs at least one site; pass a table for each")
    source = _source(transcript, encoded) if seed is None else seed
    run = _secret(source, "name of the run").hex()[:32] if seed is None else f"simulation-{seed}"
    secrets = {name: _secret(source, name) for name in encoded}
    identities = {name: Keys(secret).identity for name, secret in secrets.items()}
    trust = (trust_named(trust, {}) if isinstance(trust, str) else trust).with_roster(identities)
    coordinator = Keys(_secret(source, "coordinator"))
    terms = Terms(schema, budget, trust.name, settings_of(trust), unit, public_sizes)
    trust = trust.in_process(lambda name: _secret(source, f"trust {name}"), terms, coordinator.public)
    kinds = {query.kind: query for query in queries}
    policy = Policy(
        budget,
        {trust.name: trust},
        verbs=VERBS,
        kinds=kinds,
        unit=unit,
        exact=exact or budget.exact,
        size_is_public=public_sizes,
        any_plan=True,
        largest_message=LARGEST_MESSAGE,
        largest_stored=2**60,  # a simulation stores in memory, and large replies not at all
        coordinator_sees_exact_counts=True,
    )
    clock = now if seed is None else _beginning
    sites = [_site(name, table, policy, secrets[name], clock, coordinator.public) for name, table in encoded.items()]
    channel = transport(sites)
    if transcript is not None:
        channel = recorded = Recorded(channel, transcript, kinds)
        if trust.sums and trust.sums.turns > 1 and transport is InProcess:
            recorded.start_sums_over()
    federation = begun(
        terms,
        trust,
        channel,
        run=run,
        rng=np.random.default_rng(int.from_bytes(_secret(source, "draws of the run")) if seed is None else seed),
        secret=_secret(source, "server"),
        coordinator=coordinator,
        identities=identities,
        simulated=True,
    )
    sizes = {name: table.rows_read for name, table in encoded.items()} if public_sizes else None
    listed_tables = tables.values() if isinstance(tables, Mapping) else tables
    return replace(
        federation,
        sizes=sizes,
        seeded=seed is not None,
        unproved=tuple(unproved),
        typed_elsewhere=have_types(listed_tables, schema, person),
        progress=progress,
    )


def _site(
    name: str, table: Table, policy: Policy, secret: bytes, clock: Callable[[], datetime], coordinator: bytes
) -> Site:
    """Return a simulated site, whose account is kept in memory."""
    # The sites of a resumed run are new objects, which must draw the same salts again.
    account = Book(entropy=_seeded(secret), clock=clock)
    return Site(name, table, policy, account, secret, coordinator, rows_digest(secret, table.digest))


def have_types(tables: Iterable[object], schema: Schema, person: str = "") -> bool:
    """Return whether some of the ``tables`` are data frames with a column that is read and that is no text.

    Such columns were given their types before fedsynth saw the rows
    (:attr:`Statement.typed_elsewhere <fedsynth.statement.Statement>`).
    """
    import pandas as pd

    read = {*(column.name for column in schema.asked), person}
    return any(
        not holds_text(frame.iloc[:, at])
        for frame in tables
        if isinstance(frame, pd.DataFrame)
        for at, name in enumerate(frame.columns)
        if name in read
    )


def _encode(
    tables: Mapping[str, pd.DataFrame | Table] | Sequence[pd.DataFrame | Table],
    schema: Schema,
    person: str,
    unit: Unit,
) -> dict[str, Table]:
    given = tables if isinstance(tables, Mapping) else {f"site-{k:03d}": table for k, table in enumerate(tables)}
    named = given
    for name, rows in given.items():
        check_site_name(name)
        if isinstance(rows, Table) and type(rows) is not Table:  # it could count as it likes
            raise SchemaError(f"the rows of site {name!r} are of the class {type(rows).__name__}; pass a Table itself")
    if person:
        named = _of_persons(named, schema, person, unit)
    elif not all(isinstance(table, Table) for table in named.values()):
        require_one_row(unit.rows, unit.sites)
    encoded = {}
    for name, table in named.items():
        encoded[name] = table if isinstance(table, Table) else encode(schema, table)
        if encoded[name].schema.digest != schema.digest:
            raise SchemaError(f"site {name!r} is encoded under another schema; encode its rows with the agreed one")
        encoded[name].require_rows(f"site {name!r}")
    if not person:
        known = {
            name: None if table.persons is None else table.persons[: len(table)] for name, table in encoded.items()
        }
        require_limited(known, unit.rows, unit.sites)
    _warn(given, encoded)
    return encoded


def _of_persons(
    tables: Mapping[str, pd.DataFrame | Table], schema: Schema, person: str, unit: Unit
) -> dict[str, Table]:
    """Encode the rows that are used of each person: as many, and at as many sites, as the unit of protection says.

    The choice among a person's rows depends on those rows only, under any key, so that a fixed one does; a resumed run
    chooses the same ones.
    """
    frames = {}
    for name, table in tables.items():
        if isinstance(table, Table) or person not in table.columns:
            raise SchemaError(
                f"site {name!r} has no column {person!r}, which tells persons apart; pass data frames with that column"
            )
        frames[name] = table
    key = hashlib.sha256(b"rows of persons").digest()
    at = keep_sites({name: frame[person] for name, frame in frames.items()}, unit.sites, key)
    encoded = {}
    for name, frame in frames.items():
        used = frame[at[name]]
        used = used[keep_rows(used[person], unit.rows, key)]
        table = assembled(
            schema, (encode_column(schema, column, used) for column in schema.asked), identify(used[person])
        )
        ignored = tuple(column for column in schema.ignored(map(str, frame.columns)) if column != person)
        limit = f"at most {unit.rows} of each {person!r} are, at up to {unit.sites} sites, and none without one"
        lost = len(frame) - len(used)
        remarks = (f"{lost} of the {len(frame)} rows are not used: {limit}",) if lost else ()
        encoded[name] = replace(table, misfits=replace(table.misfits, ignored=ignored, remarks=remarks))
    return encoded


def _warn(given: Mapping[str, object], tables: Mapping[str, Table]) -> None:
    """Warn of rows and values that encoding left out or changed, once for each site, and of empty or equal sites."""
    found: list[str] = []
    ignoring: dict[tuple[str, ...], list[str]] = {}
    for name, table in tables.items():
        misfits = table.misfits
        if said := replace(table, misfits=replace(misfits, ignored=())).findings():
            found.append(with_lines(f"site {name!r}:", said))
        if misfits.ignored:
            ignoring.setdefault(misfits.ignored, []).append(name)
    for ignored, names in ignoring.items():
        found.append(f"{_sites(names, len(tables))}: {Misfits(ignored=ignored).on_ignored()[0]}")
    if empty := [name for name, table in tables.items() if not table.rows_read]:
        have = "has" if len(empty) == 1 else "have"
        found.append(f"{len(empty)} of {len(tables)} sites {have} no rows ({listed(empty, '')[1:]})")
    for names in _same_rows(given, tables):
        found.append(
            f"sites {listed(names, '')[1:]} have the same rows, {len(tables[names[0]])} each: the result counts them "
            "several times, and whoever they are about has rows at several sites, which the unit of protection must say"
        )
    for text in found:
        warnings.warn(text, DataWarning, stacklevel=4)


def _same_rows(given: Mapping[str, object], tables: Mapping[str, Table]) -> list[list[str]]:
    """Return the names of sites that were given one table, or equal rows, of so many kinds that it is no chance."""
    objects: dict[int, list[str]] = {}
    contents: dict[object, list[str]] = {}
    for name, table in tables.items():
        if len(table):
            objects.setdefault(id(given[name]), []).append(name)
            persons = b"" if table.persons is None else table.persons.tobytes()
            contents.setdefault((table.digest, persons), []).append(name)
    found = [names for names in objects.values() if len(names) > 1]
    for names in contents.values():
        if len(names) > 1 and not any(set(names) <= set(same) for same in found):
            kinds = np.unique(np.stack(tables[names[0]].codes), axis=1).shape[1]
            found += [names] if kinds >= _NO_CHANCE else []
    return found


def _sites(names: Sequence[str], number: int) -> str:
    if len(names) == number > 1:
        return f"all {number} sites"
    return f"{'site' if len(names) == 1 else 'sites'} {listed(names, '')[1:]}"


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored state of a run without a seed: the secret from which its noise is derived, and a keyed digest of rows."""

    secret: bytes
    rows: bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


def secret_file(transcript: Path) -> Path:
    """Return the path of the private file beside a ``transcript`` with the secret of a simulation's noise."""
    return transcript.with_name(f"{transcript.name}.secret")


def _source(transcript: Path | None, tables: Mapping[str, Table]) -> SecretBytes:
    """Return 32 random bytes from which all secrets of a run are derived: drawn at its start, kept beside a transcript.

    With other secrets, a resumed run would release the same answers again with other noise, for one charge.
    """
    fresh = SecretBytes(os.urandom(32))
    if transcript is None:
        return fresh
    file, content = secret_file(transcript), repr([(name, table.digest) for name, table in tables.items()]).encode()
    if not was_begun(transcript):
        write_private(file, msgspec.json.encode(_Kept(bytes(fresh), hmac.digest(fresh, content, "sha256"))))
        return fresh
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError) as error:
        raise FedsynthError(
            f"{file} is missing or damaged, and the run of {transcript} cannot go on without it: restore it, give the "
            "seed if the run had one, or give this run another path"
        ) from error
    if not hmac.compare_digest(hmac.digest(kept.secret, content, "sha256"), kept.rows):
        raise FedsynthError(
            f"{transcript} is the transcript of a run over other sites or rows, or under another schema; resume with "
            "the same tables and schema, or give this run another path"
        )
    return SecretBytes(kept.secret)


def _secret(source: int | bytes, owner: str) -> SecretBytes:
    """Return 32 secret bytes for ``owner``; if the source is a seed, anyone who knows the seed can derive them."""
    if isinstance(source, bytes):
        return SecretBytes(hmac.digest(source, owner.encode(), "sha256"))
    return SecretBytes(hashlib.sha256(f"seeded simulation {source} {owner}".encode()).digest())


def _beginning() -> datetime:
    """Return a fixed time for all audit rows: they are hash-chained, so the time would change every reply's bytes."""
    return datetime(2026, 1, 1, tzinfo=UTC)


def _seeded(secret: bytes) -> Callable[[str], bytes]:
    """Return a source of salts derived from the question, so that a simulation can be repeated or resumed exactly."""
    return lambda key: hmac.digest(secret, f"salt {key}".encode(), "sha256")
