"""Flower as the transport: the server that runs a method, and the client through which a site answers.

The only file that imports flwr (1.41). A Flower app names ``server`` and ``client`` as its components and holds no
code of its own. Rule 1: bytes go to a site and bytes come back; what they say is between Federation and Site. Rule 2: a
node is who it was registered as, by its key; what it says about itself is only checked against that. Rule 3: whatever
keeps a node from answering makes its site a lost one, never the run. Rule 4: when a reply leaves a site tells neither
how many rows there are nor what they hold, but in steps of the policy's ``answer_every``.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

import fedsynth
from fedsynth.deploy.site_config import SiteConfig, answer, load_site_config, wait_until_due
from fedsynth.errors import FedsynthError, Refused, SiteLost
from fedsynth.federation.federation import Federation
from fedsynth.federation.transport import Message, Recorded, Transport
from fedsynth.federation.wire import Reply, Seen
from fedsynth.files import private_folder, write_private
from fedsynth.models.synthesizer import Synthesizer
from fedsynth.privacy.ledger import Ledger
from fedsynth.schema import Schema

if TYPE_CHECKING:
    from fedsynth.deploy.deploying import DeployedJob

ASK = "query"  # the one action that a site knows
LARGEST_BATCH = 1 << 26  # bytes of requests that travel together; Flower cuts arrays into objects of 5 MiB itself
POLL = 0.5  # s between two looks for replies
_log = logging.getLogger("flwr.fedsynth")  # Flower's own log: `flwr log` shows it

client = ClientApp()
server = ServerApp()


# ---------------------------------------------------------------------------------------------------------------------
# At the server


class FlowerTransport:
    """Requests to registered SuperNodes as messages, all of one exchange to one node in one message.

    ``sites`` is the agreed roster; a node is the site of the name that it was registered under
    (``flwr supernode register KEY --name NAME``). A site that is not connected, fails, answers nonsense or takes
    longer than ``deadline`` seconds is answered for by a reply with the code ``lost``.
    """

    def __init__(self, grid: Grid, sites: Sequence[str], deadline: float, poll: float = POLL) -> None:
        """Take Flower's grid, the roster and the deadline of an exchange."""
        self._grid = grid
        self._sites = tuple(sites)
        self._deadline = deadline
        self._poll = poll

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites of the roster."""
        return self._sites

    def nodes(self) -> dict[str, int]:
        """Return the connected nodes of the roster by name; raises :class:`Refused` if two have one name."""
        found: dict[str, int] = {}
        for node in self._grid.get_nodes():
            if node.name not in self._sites:
                continue
            if node.name in found:
                raise Refused(
                    f"two nodes are registered as {node.name!r} ({found[node.name]} and {node.node_id}); unregister "
                    "the one that is not that site's (`flwr supernode list`)"
                )
            found[node.name] = node.node_id
        return found

    def wait(self, least: int) -> tuple[str, ...]:
        """Wait for all sites, at most until the deadline, and return those that are connected.

        Raises :class:`SiteLost` if they are fewer than ``least``.
        """
        end = time.monotonic() + self._deadline
        while len(connected := self.nodes()) < len(self._sites) and time.monotonic() < end:
            time.sleep(self._poll)
        missing = [name for name in self._sites if name not in connected]
        if len(connected) < least:
            raise SiteLost(f"{len(connected)} sites are connected and {least} are required; missing: {missing}")
        if missing:
            _log.warning("not connected, and left out until they are: %s", missing)
        return tuple(name for name in self._sites if name in connected)

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield one reply per message, in their order, each as soon as it is there."""
        asked = list(messages)
        if not asked:
            return
        end = time.monotonic() + self._deadline
        replies: dict[int, Reply] = {}
        waiting = self._send(asked, replies)
        for position in range(len(asked)):
            while position not in replies:
                self._receive(asked, waiting, replies)
                if position not in replies and time.monotonic() >= end:
                    for batch in waiting.values():
                        self._lose(asked, batch, replies, f"no answer within {self._deadline:g} s")
                    waiting.clear()
                elif position not in replies:
                    time.sleep(self._poll)
            yield replies.pop(position)

    def _send(self, asked: Sequence[Message], replies: dict[int, Reply]) -> dict[str, list[int]]:
        """Push the messages; return the positions that each of Flower's carries, by its id."""
        nodes = self.nodes()
        pushed, batches = [], []
        for name in dict.fromkeys(message.site for message in asked):
            positions = [at for at, message in enumerate(asked) if message.site == name]
            if name not in nodes:
                self._lose(asked, positions, replies, "not connected")
                continue
            for batch in _batches(positions, [len(asked[at].data) for at in positions]):
                content = _pack("requests", [asked[at].data for at in batch])
                content["head"] = ConfigRecord({"fedsynth": fedsynth.__version__, "site": name})
                group = str(asked[batch[0]].request.head.step)
                pushed.append(FlowerMessage(content, nodes[name], ASK, ttl=self._deadline, group_id=group))
                batches.append(batch)
        # Flower gives None for a message that it does not take, and nothing at all if it takes none.
        ids: list[str | None] = list(self._grid.push_messages(pushed)) if pushed else []
        waiting: dict[str, list[int]] = {}
        for at, batch in enumerate(batches):
            message_id = ids[at] if at < len(ids) else None
            if message_id is None:
                self._lose(asked, batch, replies, "Flower did not take the message")
            else:
                waiting[message_id] = batch
        return waiting

    def _receive(self, asked: Sequence[Message], waiting: dict[str, list[int]], replies: dict[int, Reply]) -> None:
        """Take the replies that have arrived."""
        for message in self._grid.pull_messages(list(waiting)):
            batch = waiting.pop(message.metadata.reply_to_message_id, [])
            if message.has_error():
                self._lose(asked, batch, replies, f"Flower's error {message.error.code}")
                continue
            try:
                parts = list(_unpack("replies", message.content))
                if len(parts) != len(batch):
                    raise FedsynthError(f"{len(parts)} replies to {len(batch)} messages")
            except Exception as error:  # a site may send anything at all
                self._lose(asked, batch, replies, f"its reply cannot be read ({type(error).__name__}: {error})")
                continue
            for at, part in zip(batch, parts, strict=True):
                replies[at] = reply = asked[at].reply(part)
                if reply.code == "lost":
                    self._lose(asked, [at], replies, reply.lost)

    def _lose(self, asked: Sequence[Message], batch: list[int], replies: dict[int, Reply], why: str) -> None:
        if batch:
            _log.warning("lost site %s in step %d: %s", asked[batch[0]].site, asked[batch[0]].request.head.step, why)
        for at in batch:
            replies[at] = asked[at].lost(why)


def _batches(positions: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions in runs of at most ``LARGEST_BATCH`` bytes; a larger request goes alone."""
    batch: list[int] = []
    used = 0
    for position, size in zip(positions, sizes, strict=True):
        if batch and used + size > LARGEST_BATCH:
            yield batch
            batch, used = [], 0
        batch.append(position)
        used += size
    yield batch


@server.main()
def _serve(grid: Grid, context: Context) -> None:
    """Run the job whose file the run configuration names; everything that it makes lies beside that file."""
    from fedsynth.deploy.deploying import DeployedJob  # and with it the command line, which no client needs

    path = Path(str(context.run_config["job"]))
    job = DeployedJob.load(path)
    transport = FlowerTransport(grid, job.sites, job.deadline)
    transport.wait(job.least)
    run_deployed(job, path.parent, transport)


def run_deployed(job: DeployedJob, folder: Path, transport: Transport) -> Path:
    """Run the job over a transport, from where it stopped if it was begun; return the run directory.

    ``folder/state/RUN`` holds what resumes the run (transcript, server's secret) and ``folder/runs/RUN`` appears
    when the run is complete.
    """
    from fedsynth.deploy.deploying import load_coordinator

    out, state = folder / "runs" / job.run, folder / "state" / job.run
    if out.exists():
        raise FedsynthError(f"the run {job.run!r} is complete, in {out}; give the job another run name to run it anew")
    schema, coordinator = Schema.load(folder / job.schema), load_coordinator(folder)
    method, trust = job.build(schema), job.build_trust()
    with _claimed(state):
        seed, secret = _begin(state, job.digest(schema))
        witness = Witness(transport, folder / "state" / "seen.json")
        recorded = Recorded(witness, state / "transcript")
        federation = Federation(
            schema,
            Ledger(job.budget),
            trust,
            recorded,
            job.sites,
            np.random.default_rng(seed),
            job.run,
            secret,
            coordinator,
            unit=job.unit,
            neighbours="replace" if job.public_sizes else "add-remove",
            min_sites=job.least,
            plan=job.plan,
            seen=witness.seen,
            released=recorded.released,
            progress=lambda what, done, total: _log.info("%s: %d of %d", what, done, total),
        )
        if job.public_sizes:
            sizes = federation.public_sizes()
            federation = replace(federation, sites=tuple(sizes), sizes=sizes)
        synthesizer = method.fit(federation)
        synthetic = synthesizer.sample(job.rows, federation.rng)
        _write(out, job, federation, synthesizer, synthetic, state / "transcript")
    _log.info("%d rows in %s; %s", len(synthetic), out, federation.statement.headline)
    for warning in federation.statement.warnings():
        _log.warning("%s", warning)
    _log.info("sites that missed a round: %s", sorted(set(federation.lost)) or "none")
    return out


@contextmanager
def _claimed(state: Path) -> Iterator[None]:
    """Hold the run: two servers that asked under one name would each pay for questions of their own."""
    with (private_folder(state) / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FedsynthError(
                f"the run {state.name!r} is going on in another process; wait for it, or stop it (`flwr stop`)"
            ) from error
        yield


class Witness:
    """A transport that writes down the last audit row of each site that a reply shows, before the reply is used.

    A site whose account is an old backup does not have the row that the server saw, and refuses: also where the server
    lost its power since. ``seen`` is what this run and earlier ones saw. Runs share the file, and none takes back what
    another wrote.
    """

    def __init__(self, transport: Transport, file: Path) -> None:
        """Read what earlier runs saw."""
        self._transport = transport
        self._file = file
        self.seen = self._written()

    @property
    def sites(self) -> Sequence[str]:
        """Names of the sites that can be reached."""
        return self._transport.sites

    def exchange(self, messages: Iterable[Message]) -> Iterator[Reply]:
        """Yield each reply, once what it shows is on the disk."""
        for reply in self._transport.exchange(messages):
            if reply.seen.row > self.seen.get(reply.site, Seen()).row:
                self.seen[reply.site] = reply.seen
                self._write()
            yield reply

    def _written(self) -> dict[str, Seen]:
        told = json.loads(self._file.read_text()) if self._file.exists() else {}
        return {site: Seen(row, bytes.fromhex(chain)) for site, (row, chain) in told.items()}

    def _write(self) -> None:
        with self._file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for site, known in self._written().items():
                self.seen[site] = max(known, self.seen.get(site, Seen()), key=lambda seen: seen.row)
            content = {site: [known.row, known.chain.hex()] for site, known in self.seen.items()}
            write_private(self._file, json.dumps(content))


def _begin(state: Path, digest: str) -> tuple[int, bytes]:
    """Return the seed of the run's public draws and the server's secret: drawn at its beginning, kept until its end.

    With another secret, a resumed run would hide the same sums under other noise: released twice, paid once.
    """
    file = state / "run.json"
    if not file.exists():
        fresh = {"job": digest, "seed": secrets.randbits(63), "secret": secrets.token_hex(32)}
        write_private(file, json.dumps(fresh))
    begun = json.loads(file.read_text())
    if begun["job"] != digest:
        raise FedsynthError(
            f"job.toml or the schema is not what the run {state.name!r} began with; put that back to resume, or give "
            "the job another run name"
        )
    return begun["seed"], bytes.fromhex(begun["secret"])


def _write(
    out: Path, job: DeployedJob, federation: Federation, synthesizer: Synthesizer, synthetic: Any, transcript: Path
) -> None:
    """Write the run directory, whole or not at all: the files that ``fedsynth simulate`` writes."""
    from fedsynth.data.source import write_frame

    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        write_frame(synthetic, partial / f"synthetic.{job.format}")
        synthesizer.save(partial / "model.fedsynth")
        federation.schema.save(partial / "schema.toml")
        account = {**federation.ledger.to_json(), "statement": federation.statement.to_json()}
        (partial / "ledger.json").write_text(json.dumps(account, indent=1))
        shutil.copyfile(transcript, partial / "transcript")
        made = {
            "fedsynth": fedsynth.__version__,
            "schema_digest": federation.schema.digest,
            "lost_sites": sorted(set(federation.lost)),
        }
        (partial / "run.toml").write_text(job.to_toml() + "\n" + tomli_w.dumps({"made": made}))
        os.replace(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


# ---------------------------------------------------------------------------------------------------------------------
# At a site


@client.query()
def _answer(message: FlowerMessage, context: Context) -> FlowerMessage:
    """Answer the requests of one message from the site that the node's configuration names."""
    began = time.monotonic()
    every = 1.0
    try:
        config = load_site_config(Path(str(context.node_config["site-config"])))
        every = config.policy.answer_every
        content = _pack("replies", _replies(config, message.content))
    except Exception:
        _log.exception("this site could not answer")  # in the site's own log; the server learns nothing of it
        content = RecordDict({"failed": ConfigRecord({})})
    reply = FlowerMessage(content, reply_to=message)
    wait_until_due(began, every)
    return reply


def _replies(config: SiteConfig, content: RecordDict) -> list[bytes]:
    server, addressed = (str(content.config_records["head"][key])[:64] for key in ("fedsynth", "site"))
    why = ""
    if server != fedsynth.__version__:
        why = f"it runs fedsynth {fedsynth.__version__} and the server {server!r}; upgrade both together"
    elif addressed != config.name:
        why = f"its site.toml says {config.name!r}; register its key under that name, or correct the file"
    return answer(config, list(_unpack("requests", content)), why)


# ---------------------------------------------------------------------------------------------------------------------
# Bytes in Flower's records


def _pack(name: str, parts: Sequence[bytes]) -> RecordDict:
    """Return the parts as arrays of bytes, in order."""
    arrays = {f"{at:06d}": Array(np.frombuffer(part, dtype=np.uint8)) for at, part in enumerate(parts)}
    return RecordDict({name: ArrayRecord(arrays)})


def _unpack(name: str, content: RecordDict) -> Iterator[bytes]:
    """Yield the parts that :func:`_pack` laid down."""
    record = content.array_records[name]
    for key in sorted(record):
        part: NDArray[np.uint8] = record[key].numpy()
        if part.dtype != np.uint8 or part.ndim != 1:
            raise FedsynthError(f"a part of {name} is {part.dtype} of {part.ndim} dimensions, not bytes")
        yield part.tobytes()
