import json
import shutil
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pandas as pd
import pytest
from msgspec import structs
from tests.world import Faulty

from fedsynth.deep.fedvae import FedVAE
from fedsynth.errors import FedsynthError
from fedsynth.federation import query
from fedsynth.federation.agreement import PlannedQuestion
from fedsynth.federation.federation import Federation
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.query import Counts, RecordCount
from fedsynth.federation.simulate import federate
from fedsynth.federation.site import Site
from fedsynth.federation.transport import (
    InProcess,
    Recorded,
    _record,
    conclude,
    recorded_requests,
    recorded_turns,
    records,
)
from fedsynth.federation.trust import Trust, settings_of
from fedsynth.federation.trusted import TrustedServer
from fedsynth.federation.vault import CandidateScores
from fedsynth.federation.wire import AuditPosition, ReplyHead, write_answer, write_reply
from fedsynth.keys import Keys
from fedsynth.methods import find_method
from fedsynth.methods.flaim import FLAIM
from fedsynth.privacy.cost import Budget, Unit
from fedsynth.privacy.gaussian import gaussian_epsilon
from fedsynth.privacy.release import kind_of
from fedsynth.proof.extract import AccountExtract, extract, sign_extract
from fedsynth.proof.prove import prove
from fedsynth.proof.sheet import ProofSheet
from fedsynth.runs.dry_run import forecast
from fedsynth.schema import Categorical, Numeric, Schema
from fedsynth.secure.site import SecureSum
from fedsynth.servers.trust import ThreeServers
from fedsynth.terms import Terms

SCHEMA = Schema((Categorical("sex", ("f", "m")), Numeric("age", 0, 100, bins=10)))
BUDGET = Budget(1.0, 1e-6)
NAMES = ("east", "north", "south")
KINDS = {name: kind for kind, name in Recorded.KINDS.items()}


@dataclass
class Run:
    """A finished run: its files, and the sites with their accounts."""

    folder: Path
    federation: Federation
    sites: list[Site]

    @property
    def transcript(self) -> Path:
        return self.folder / "transcript"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.json"

    def extract(self, name: str) -> AccountExtract:
        site = next(site for site in self.sites if site.name == name)
        return extract(site.account, site.secret, site.name, self.federation.run, site.coordinator)

    def sheet(self, **options: object) -> ProofSheet:
        federation = self.federation
        return prove(self.transcript, self.ledger, SCHEMA, federation.trust, federation.budget, **options)  # type: ignore[arg-type]

    def proved(self) -> ProofSheet:
        """Return the sheet with every site's extract and its key."""
        return self.sheet(
            extracts=[self.extract(site.name) for site in self.sites],
            identities={site.name: Keys(site.secret).identity for site in self.sites},
        )

    def change_ledger(self, change) -> None:
        content = json.loads(self.ledger.read_text())
        change(content)
        self.ledger.write_text(json.dumps(content))


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"sex": rng.choice(["f", "m"], rows), "age": rng.integers(0, 100, rows).astype(float)})


def start(folder: Path, trust: Trust, budget: Budget, **options) -> Run:
    link = Faulty()
    tables = {name: frame(30, at) for at, name in enumerate(NAMES)}
    if "unit" in options:
        tables = {name: rows.assign(who=[f"{name} {at}" for at in range(30)]) for name, rows in tables.items()}
        options["person"] = "who"
    transcript = folder / "transcript"
    federation = federate(tables, SCHEMA, budget, trust=trust, transcript=transcript, transport=link, **options)
    return Run(folder, federation, list(link.doors.values()))


def finish(run: Run) -> Run:
    account = {**run.federation.ledger.to_json(), "statement": run.federation.statement.to_json()}
    run.ledger.write_text(json.dumps(account))
    return run


def a_run(folder: Path, trust: Trust, budget: Budget = BUDGET, **options) -> Run:
    """Run a sum, two sums over different sites in one step, and an answer of each site."""
    run = start(folder, trust, budget, **options)
    run.federation.sum(Counts.of(2, [(0,), (0, 1)], (1, 2)), 0.5)
    pair, ages = Counts.of(2, [(0, 1)]), Counts.of(2, [(1,)])
    run.federation.sums({"east": [pair], "north": [pair, ages], "south": [ages]}, 0.125)
    run.federation.each(RecordCount(), 0.1)
    return finish(run)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return a_run(tmp_path, LocalNoise())


def rewrite(transcript: Path, keep) -> None:
    """Write a transcript again with the records that are kept, or with others in their place."""
    kept = [(kind, data) for kind, data in records(transcript) if keep(kind, data)]
    transcript.unlink()
    recorded = Recorded(InProcess([]), transcript)
    for kind, data in kept:
        recorded._append(KINDS[kind], data)


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise(), SecureSum()], ids=lambda trust: trust.name)
@pytest.mark.parametrize("budget", [BUDGET, Budget(1.0, 0.0), Budget.none()], ids=["rho", "pure", "exact"])
def test_a_real_run_is_proved(tmp_path, trust, budget):
    run = a_run(tmp_path, trust, budget)
    sheet = run.proved()
    assert sheet.problems == ()
    assert sheet.confirmed == NAMES
    assert sheet.notes == ()
    assert len(sheet.lines) == 4
    assert sheet.per_site == run.federation.ledger.per_site
    assert "told by the server" not in sheet.basis
    assert ("NOT PRIVATE" in sheet.verdict) == budget.exact


class Theirs(RecordCount, frozen=True):
    """A question of another package."""

    kind: ClassVar[str] = "theirs"


def test_a_statement_must_not_call_proved_what_packages_declare(tmp_path, monkeypatch):
    entry = EntryPoint("theirs", f"{__name__}:Theirs", "fedsynth.queries")
    monkeypatch.setattr(query, "installed", lambda *_: {"theirs": entry})  # for the reader of the transcript
    run = start(tmp_path, LocalNoise(), BUDGET, queries=[Theirs])
    run.federation.each(Theirs(), 0.1)
    finish(run)
    sheet = run.proved()
    assert sheet.problems == ()
    assert "the sensitivity of theirs is declared by another package, not proved" in sheet.notes
    run.change_ledger(lambda content: content["statement"].update(basis="proved", foreign=[]))
    first, second = run.proved().problems
    assert "does not name questions of other packages: theirs" in first
    assert "calls proved what packages declare" in second
    run.change_ledger(lambda content: content["statement"].update(foreign=["theirs", 3]))
    assert len(run.proved().problems) == 2


@pytest.mark.parametrize("public_sizes", [False, True])
@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise(), SecureSum()], ids=lambda trust: trust.name)
def test_a_run_that_protects_persons_is_proved(tmp_path, trust, public_sizes):
    run = a_run(tmp_path, trust, unit=Unit(3, 2), public_sizes=public_sizes)
    sheet = run.proved()
    assert sheet.problems == ()
    counts = sheet.lines[0]
    factor = 3 * (2 if trust.pooled else 1)
    assert counts.norms is not None
    assert counts.norms.l1 == factor * 3 * (2 if public_sizes else 1)
    assert counts.times == (1 if trust.pooled else 2)
    assert counts.tables == (("sex",), ("sex", "age"))


def test_the_sheet_can_be_read_and_says_whose_word_it_is(run):
    sheet = run.sheet()
    assert sheet.problems == ()
    assert sheet.basis == "as told by the server"
    assert "sum counts (2 tables)" in sheet.text
    assert "85.00%" in sheet.text  # north was in all of them
    assert "as told by the server" in sheet.text
    facts = json.loads(json.dumps(sheet.to_json(), allow_nan=False))
    assert facts["proved"]
    assert facts["releases"][0]["tables"] == [["sex"], ["sex", "age"]]
    one = run.sheet(extracts=[run.extract("north")])
    assert one.basis == "confirmed by the signed accounts of north; as told by the server for east, south"
    assert "compare it with the identity key" in one.notes[0]


def test_a_vault_pays_from_its_deposit(tmp_path):
    run = start(tmp_path, TrustedServer(), BUDGET)
    vault = run.federation.deposit(Counts.of(2, [(0, 1)]), 0.5)
    vault.open(Counts.of(2, [(0,)]), 0.2)
    distances = CandidateScores(((0,), (1,)), (np.full(2, 40.0), np.full(10, 8.0)), np.ones(2), np.zeros(2))
    vault.select(distances, 0.3)
    sheet = finish(run).proved()
    assert sheet.problems == ()
    assert [line.entry.paid_by for line in sheet.lines] == ["", "deposit of step 0", "deposit of step 0"]

    def twice(content):
        content["entries"].append(content["entries"][-1])

    run.change_ledger(twice)
    assert any("are paid by the deposit of step 0" in problem for problem in run.sheet().problems)


@pytest.mark.parametrize("trust", [TrustedServer(), ThreeServers()], ids=lambda trust: trust.name)
def test_cohorts_of_a_vault_are_proved(tmp_path, trust):
    run = start(tmp_path, trust, BUDGET)
    first, rest = (replace(run.federation, sites=run.federation.sites[part]) for part in (slice(0, 1), slice(1, 3)))
    vault = first.deposit(Counts.of(2, [(0, 1)]), 0.5)
    vault.open(Counts.of(2, [(0,)]), 0.2)
    rest.deposit_into(vault)
    vault.select(CandidateScores(((0,), (1,)), (np.full(2, 40.0), np.full(10, 8.0)), np.ones(2), np.zeros(2)), 0.3)
    sheet = finish(run).proved()
    assert sheet.problems == ()
    assert [line.entry.verb for line in sheet.lines] == ["deposit", "deposit", "open", "select"]
    assert all(cost.rho == pytest.approx(0.5 * BUDGET.rho) for cost in sheet.per_site.values())

    def stranger(content):
        content["entries"][-1]["sites"] = [*content["entries"][-1]["sites"], "west"]

    run.change_ledger(stranger)
    assert any("sites that deposited nothing" in problem for problem in run.sheet().problems)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("budget", [BUDGET, Budget(1.0, 0.0)], ids=["rho", "pure"])
def test_draws_are_proved(tmp_path, budget, steps):
    run = start(tmp_path, LocalNoise(), budget, public_sizes=True)
    FLAIM(rounds=2, rate=1.0, steps=steps).fit(run.federation)
    sheet = finish(run).proved()
    assert sheet.problems == ()
    assert {kind_of(line.entry.release) for line in sheet.lines if line.entry.verb == "choose"} == {
        "exponential" if steps == 1 else "adaptive"
    }


# ---------------------------------------------------------------------------------------------------------------------
# What does not agree is found


def problems(sheet: ProofSheet, *parts: str) -> None:
    """Require a problem with each of the parts, and a sheet that says that it proves nothing."""
    for part in parts:
        assert any(part in problem for problem in sheet.problems), sheet.problems
    assert sheet.verdict.startswith("NOT PROVED")
    assert not sheet.to_json()["proved"]


def test_another_price_in_the_ledger_is_found(run):
    def cheaper(content):
        content["entries"][0]["cost"]["rho"] /= 2

    run.change_ledger(cheaper)
    problems(run.proved(), "step 0 (sum counts): it costs rho")


def test_other_totals_in_the_ledger_are_found(tmp_path):
    run = a_run(tmp_path, TrustedServer())

    def cheaper(content):
        content["per_site"]["north"]["rho"] /= 2
        content["spent"]["rho"] /= 2

    run.change_ledger(cheaper)
    problems(run.proved(), "site north paid", "one person paid at most")


def test_other_noise_in_the_ledger_is_found(tmp_path):
    run = a_run(tmp_path, SecureSum())

    def louder(content):
        content["entries"][0]["std"] *= 2

    run.change_ledger(louder)
    problems(run.proved(), "standard deviation")


def test_an_entry_that_is_missing_is_found(run):
    run.change_ledger(lambda content: content["entries"].pop())
    problems(run.proved(), "step 2 (each size) was asked, and the ledger has no entry")


def test_an_entry_of_an_unknown_question_is_found(run):
    run.change_ledger(lambda content: content["entries"][3].update(question="ab" * 32))
    problems(
        run.proved(),
        "step 2 (each size) was asked, and the ledger has no entry for it",
        "the ledger has step 2 (each size), and the transcript has no such question",
    )


def test_a_second_entry_of_a_question_is_found(run):
    run.change_ledger(lambda content: content["entries"].append(content["entries"][0]))
    problems(run.proved(), "step 0 (sum counts) was asked once, and the ledger has 2 entries for it")


def test_entries_that_name_each_others_questions_are_found(run):
    def swap(content):
        first, last = content["entries"][0], content["entries"][3]
        first["question"], last["question"] = last["question"], first["question"]

    run.change_ledger(swap)
    problems(
        run.proved(), "the ledger calls it step 2 (each size)", "its price is gaussian rho", "it has 22 cells, and the"
    )


def test_sizes_of_messages_are_told_and_prove_nothing(tmp_path):
    run = a_run(tmp_path, SecureSum())
    sizes = [(len(entry.turns), list(entry.messages())) for entry in run.federation.ledger.entries]
    assert [turns for turns, _ in sizes] == [SecureSum().turns] * 3 + [1]
    lines = run.sheet().to_json()["releases"]
    assert [line["exchanges"] for line in lines] == [turns for turns, _ in sizes]
    assert [line["bytes"] for line in lines] == [sum(down + up for _, down, up in sent) for _, sent in sizes]
    asked = [entry.question for entry in run.federation.ledger.entries]
    assert [line["question"] for line in lines] == asked
    assert all(digest[:12] in run.sheet().text for digest in asked)
    run.change_ledger(
        lambda content: [entry.update(turns=[{"down": [1, 2], "up": []}]) for entry in content["entries"]]
    )
    assert run.proved().problems == ()


def test_a_site_that_is_not_charged_is_found(run):
    run.change_ledger(lambda content: content["entries"][0]["sites"].remove("east"))
    problems(run.proved(), "east answered, and the ledger does not charge them")


def test_a_question_that_is_missing_in_the_transcript_is_found(run):
    last = [data for kind, data in records(run.transcript) if kind == "question"][-1]
    rewrite(run.transcript, lambda kind, data: data != last)
    problems(
        run.proved(),
        "answered a question that is not in the transcript",
        "the ledger has step 2 (each size), and the transcript has no such question",
        "extract of north: it was charged",
    )


def test_a_question_with_all_traces_of_it_is_found_by_an_extract_alone(run):
    last = [data for kind, data in records(run.transcript) if kind == "question"][-1]
    after = [data for _, data in records(run.transcript)]
    gone = after[after.index(last) :]
    rewrite(run.transcript, lambda kind, data: data not in gone)

    def forget(content):
        entry = content["entries"].pop()
        for cost in [*content["per_site"].values(), content["spent"]]:
            cost["rho"] -= entry["cost"]["rho"]

    run.change_ledger(forget)
    assert run.sheet().problems == ()
    problems(run.proved(), "extract of east: it was charged", "extract of south: it was charged")


def concluded(run: Run) -> Run:
    """Return a run with the transcript that its folder keeps."""
    whole = run.transcript.rename(run.folder / "whole")
    conclude(whole, run.transcript, run.federation.trust)
    return run


@pytest.fixture
def brief(tmp_path: Path) -> Run:
    return concluded(a_run(tmp_path, SecureSum()))


def test_a_complete_secure_run_keeps_digests_and_is_proved_as_before(tmp_path, brief):
    """Masked answers, keys and shares of 1,000 sites took 250 MB, and show a reader nothing."""
    shown = brief.proved()
    assert (shown.problems, shown.confirmed, shown.notes) == ((), NAMES, ())
    whole = replace(brief, folder=tmp_path / "before")
    whole.folder.mkdir()
    shutil.copy(tmp_path / "whole", whole.transcript)
    shutil.copy(brief.ledger, whole.ledger)
    assert whole.proved() == shown
    kinds = [kind for kind, _ in records(brief.transcript)]
    assert kinds.count("answer") == 3  # of each site's own release, which has noise
    assert {"question", "message", "signed", "released"} <= set(kinds)
    assert brief.transcript.stat().st_size < 0.6 * whole.transcript.stat().st_size
    assert recorded_turns(brief.transcript) == recorded_turns(whole.transcript)
    with pytest.raises(FedsynthError, match="of a complete run, which cannot be resumed"):
        Recorded(InProcess([]), brief.transcript)


@pytest.mark.parametrize("trust", [LocalNoise(), TrustedServer()], ids=lambda trust: trust.name)
def test_where_answers_show_something_a_complete_run_keeps_them(tmp_path, trust):
    run = concluded(a_run(tmp_path, trust))
    assert run.transcript.read_bytes() == (tmp_path / "whole").read_bytes()


def test_no_byte_of_a_signed_record_can_be_changed(brief):
    """Which message it answers, the site's signature, code, audit row, and the digest of what is not kept."""
    held = list(records(brief.transcript))
    last = [data for kind, data in held if kind == "signed"][-1]
    begins = last.index(b"\n") + 1
    assert len(last) - begins == 128 + 112 + 32
    for at in range(begins, len(last), 9):
        changed = last[:at] + bytes([last[at] ^ 1]) + last[at + 1 :]
        brief.transcript.unlink()
        recorded = Recorded(InProcess([]), brief.transcript)
        for kind, data in held:
            recorded._append(KINDS[kind], changed if data == last else data)
        (problem,) = brief.proved().problems
        assert problem.startswith("a record (signed) of the transcript is not understood: ")


def test_a_signed_record_counts_for_its_own_message_and_question_alone(brief):
    messages = [data for kind, data in records(brief.transcript) if kind == "message"]
    other = next(data for data in messages if data[8:40] != messages[0][8:40])
    moved = other[:8] + messages[0][8:40] + other[40:]
    rewrite(brief.transcript, lambda kind, data: data != other)
    with brief.transcript.open("ab") as file:
        file.write(_record(KINDS["message"], moved))
    problems(brief.proved(), "answered a question that is not in the transcript")


def test_a_sealed_answer_in_a_transcript_is_found(run):
    asked = next(recorded_requests(run.transcript))
    sealed = write_reply(
        bytes(32),
        "north",
        ReplyHead("1" * 64, asked.digest),
        write_answer("answered", AuditPosition(), bytes(48), sealed=True),
    )
    recorded = Recorded(InProcess([]), run.transcript)
    recorded._append(KINDS["answer"], f"north {asked.digest}\n".encode() + sealed)
    problems(run.sheet(), "a transcript must not hold sealed answers")


def test_a_released_sum_of_another_size_is_found(tmp_path):
    run = a_run(tmp_path, TrustedServer())
    kept = list(records(run.transcript))
    other = next(data for kind, data in reversed(kept) if kind == "released")
    at = next(at for at, (kind, _) in enumerate(kept) if kind == "released")
    kept[at] = ("released", kept[at][1][:32] + other[32:])
    run.transcript.unlink()
    recorded = Recorded(InProcess([]), run.transcript)
    for kind, data in kept:
        recorded._append(KINDS[kind], data)
    problems(run.sheet(), "numbers instead of 22")


def test_a_released_sum_that_is_not_the_sum_of_the_noisy_answers_is_found(run):
    kept = list(records(run.transcript))
    at = next(at for at, (kind, _) in enumerate(kept) if kind == "released")
    changed = bytearray(kept[at][1])
    changed[-8] ^= 1
    run.transcript.unlink()
    recorded = Recorded(InProcess([]), run.transcript)
    for kind, data in [*kept[:at], ("released", bytes(changed)), *kept[at + 1 :]]:
        recorded._append(KINDS[kind], data)
    problems(run.sheet(), "did not release the sum")


def test_another_limit_is_found(run):
    sheet = prove(run.transcript, run.ledger, SCHEMA, LocalNoise(), Budget(0.5, 1e-6))
    problems(sheet, "the ledger was held to", "more than the limit")


def test_another_statement_is_found(run):
    run.change_ledger(lambda content: content["statement"].update(unit={"rows": 5, "sites": 1}, neighbours="replace"))
    problems(run.sheet(), "the statement says unit", "the statement says neighbours")


def test_a_statement_about_another_schema_or_trust_is_found(run):
    other = Schema((Categorical("sex", ("f", "m")), Numeric("age", 0, 120, bins=10)))
    problems(prove(run.transcript, run.ledger, other, LocalNoise(), BUDGET), "was asked under schema")
    problems(prove(run.transcript, run.ledger, SCHEMA, TrustedServer(), BUDGET), "trust 'local'")


# ---------------------------------------------------------------------------------------------------------------------
# Extracts


def signed_anew(of: Run, name: str, /, **change: object) -> AccountExtract:
    site = next(site for site in of.sites if site.name == name)
    return sign_extract(msgspec.structs.replace(of.extract(name), **change), site.secret)


def test_an_extract_with_a_charge_less_is_found(run):
    honest = run.extract("north")
    problems(
        run.sheet(extracts=[signed_anew(run, "north", charges=honest.charges[1:])]),
        "extract of north: step 0 (sum counts) was answered by the site, and its account has no charge for it",
    )


def test_an_extract_with_another_price_is_found(run):
    first, *others = run.extract("north").charges
    dearer = msgspec.structs.replace(first, cost=msgspec.structs.replace(first.cost, rho=0.5))
    problems(
        run.sheet(extracts=[signed_anew(run, "north", charges=(dearer, *others))]), "was charged rho 0.5 and costs"
    )


def test_a_wrong_signature_is_found(run):
    honest = run.extract("north")
    changed = msgspec.structs.replace(honest, charges=honest.charges[1:])
    problems(run.sheet(extracts=[changed]), "its signature is wrong")
    unsigned = msgspec.structs.replace(honest, signature="")
    problems(run.sheet(extracts=[unsigned]), "its signature is wrong")


def test_an_extract_by_somebody_else_is_found(run):
    north = next(site for site in run.sites if site.name == "north")
    forged = extract(north.account, bytes(32), "north", run.federation.run, north.coordinator)
    assert forged.signed
    problems(
        run.sheet(extracts=[forged], identities={"north": Keys(north.secret).identity}),
        "another key than the site's identity",
    )


def test_extracts_of_other_runs_coordinators_and_times_are_found(run):
    problems(run.sheet(extracts=[signed_anew(run, "north", run="another")]), "it is of run 'another'")
    problems(run.sheet(extracts=[signed_anew(run, "north", row=1)]), "was a backup put back?")
    problems(run.sheet(extracts=[run.extract("north")] * 2), "2 extracts of site north")
    other = signed_anew(run, "north", coordinator=bytes(64).hex())
    problems(run.sheet(extracts=[other, run.extract("south")]), "answer different coordinators", "has no charge for it")


def test_an_account_that_did_not_answer_this_run_is_found(run):
    moved = tuple(msgspec.structs.replace(charge, row=charge.row + 1) for charge in run.extract("north").charges)
    problems(run.sheet(extracts=[signed_anew(run, "north", charges=moved)]), "was answered from audit row 1")


def test_an_extract_is_read_from_its_file(tmp_path):
    run = a_run(tmp_path, LocalNoise(), Budget.none())
    path = tmp_path / "north.json"
    path.write_bytes(run.extract("north").to_json())
    read = AccountExtract.load(path)
    assert read == run.extract("north")
    assert read.signed
    path.write_bytes(b"{}")
    with pytest.raises(FedsynthError, match="not an account extract"):
        AccountExtract.load(path)


# ---------------------------------------------------------------------------------------------------------------------
# Released sums in a transcript


def test_a_resumed_run_goes_on_with_the_sum_that_was_released(tmp_path):
    """A site that was lost answers the resumed run; another sum under other noise would be a second release."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    tables = {name: frame(30, at) for at, name in enumerate(NAMES)}
    query = Counts.of(2, [(0, 1)])
    begun = start(first, TrustedServer(), BUDGET, seed=1)
    without = replace(begun.federation, sites=NAMES[:2])
    sum_of_two = without.sum(query, 0.5)
    shutil.copy(begun.transcript, second / "transcript")
    resumed = start(second, TrustedServer(), BUDGET, seed=1)
    assert set(resumed.federation.sites) == set(tables)
    again = resumed.federation.sum(query, 0.5)
    np.testing.assert_array_equal(again.values, sum_of_two.values)
    assert (again.sites, again.std) == (sum_of_two.sites, sum_of_two.std)
    assert [kind for kind, _ in records(resumed.transcript)].count("released") == 1
    assert finish(resumed).sheet().problems == ()


def planned_run(folder: Path, trust: Trust) -> Run:
    """Begin a run under a plan of one table, for which its statement claims an exact epsilon."""
    run = start(folder, trust, BUDGET)
    slot = PlannedQuestion("sum", "counts", "gaussian", BUDGET.rho, 1, 2, 2, 100)
    agreement = structs.replace(run.federation.agreement, slots=(slot,))
    run.federation = replace(run.federation, agreed=agreement)
    return run


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise()], ids=["trusted", "local"])
def test_an_epsilon_by_exact_accounting_is_proved_by_what_was_asked(trust, tmp_path):
    run = planned_run(tmp_path, trust)
    run.federation.sum(Counts.of(2, [(0, 1)]), 1.0)
    assert (run.federation.statement.exact or 1.0) < 0.96 * BUDGET.epsilon
    assert not finish(run).proved().problems


@pytest.mark.parametrize(
    ("trust", "price", "asks", "says"),
    [
        (LocalNoise(), 0.5 * BUDGET.rho, False, "by exact accounting; it is"),
        (LocalNoise(), 0.0, False, "under one approved plan"),
        (LocalNoise(), BUDGET.rho, True, "for Gaussian noise alone"),
        (SecureSum(), BUDGET.rho, False, "does not hold under the trust 'secure'"),
    ],
)
def test_an_epsilon_by_exact_accounting_that_does_not_hold_is_a_problem(trust, price, asks, says, tmp_path):
    run = planned_run(tmp_path, trust) if price else start(tmp_path, trust, BUDGET)
    if asks:
        method = FLAIM(rounds=1, rate=1.0, iterations=5, final_iterations=5)
        limits = find_method("flaim").limits(method, SCHEMA)
        plan = forecast("flaim", method, run.federation.terms, sites=3, rows=90, limits=limits, repeats=1).plan
        method.fit(replace(run.federation, agreed=plan))
    else:
        run.federation.sum(Counts.of(2, [(0, 1)]), 1.0)
    claimed = gaussian_epsilon(price or BUDGET.rho, BUDGET.delta)
    finish(run).change_ledger(lambda content: content["statement"].update(exact=claimed))
    assert says in "; ".join(run.proved().problems)


@pytest.mark.parametrize("trust", [TrustedServer(), LocalNoise()], ids=["trusted", "local"])
@pytest.mark.parametrize("unit", [Unit(), Unit(rows=3), Unit(rows=2, sites=3)], ids=str)
def test_an_epsilon_of_training_is_proved_by_its_samples(trust, unit, tmp_path):
    """The plan's epsilon, from a dry run over other rows, and no smaller one; not by noise in few integers."""
    pytest.importorskip("torch")
    method = FedVAE(steps=3, width=8, depth=1)
    terms = Terms(SCHEMA, BUDGET, trust.name, settings_of(trust), unit)
    limits = find_method("fedvae").limits(method, SCHEMA)
    plan = forecast("fedvae", method, terms, sites=3, rows=90, limits=limits, repeats=1).plan
    assert plan.guarantee.epsilon < 0.97 * BUDGET.epsilon
    run = start(tmp_path, trust, BUDGET, unit=unit)
    run.federation = replace(run.federation, agreed=plan)
    method.fit(run.federation)
    assert not finish(run).proved().problems

    def claim(content) -> None:
        content["statement"]["exact"] = 0.99 * plan.guarantee.epsilon

    run.change_ledger(claim)
    assert any("by exact accounting; it is" in problem for problem in run.proved().problems)
