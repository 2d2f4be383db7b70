"""Verify a pack with Python alone, without fedsynth: files, signatures, the privacy cost, and the criteria.

    python verify_pack.py PACK [NAME=KEY ...]

``NAME=KEY`` is the public key (hex) of a party that must have signed the manifest: ``coordinator`` or a site. The exit
code is 1 if something does not hold. Signatures need the package ``cryptography``; nothing else needs any. What
``fedsynth verify`` does besides: it recomputes every noisy table and each release's price from the transcript.
"""

import csv
import hashlib
import json
import math
import sys
import tomllib
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from statistics import NormalDist

normal = NormalDist()


def compact(content: dict) -> bytes:
    """Return the form of a JSON file in which it is hashed and signed."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def files(pack: Path, manifest: dict):
    """Yield which files of the pack differ from the manifest."""
    listed = {entry["path"]: entry for entry in manifest["files"]}
    for path, entry in listed.items():
        content = (pack / path).read_bytes() if (pack / path).is_file() else b""
        if (len(content), hashlib.sha256(content).hexdigest()) != (entry["size"], entry["sha256"]):
            yield f"{path} is missing or was changed"
    for file in pack.rglob("*"):
        path = file.relative_to(pack).as_posix()
        if file.is_file() and path not in listed and path != "manifest.json" and not path.startswith("signatures/"):
            yield f"{path} is not in the manifest"


def signatures(pack: Path, manifest: dict, keys: dict[str, str]):
    """Yield which signatures are wrong or missing; a party whose key is not given is not asked for.

    Signed is ``fedsynth keys 1``, then the purpose and the signature's file without the signature itself, each after
    its length in 8 bytes.
    """
    wanted = ({"coordinator": manifest["coordinator"]} if manifest["coordinator"] else {}) | keys
    for name, key in wanted.items():
        file = pack / "signatures" / f"{name}.json"
        if not file.is_file():
            yield f"the signature of {name} is missing"
            continue
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        signed = json.loads(file.read_text())
        parts = (b"pack", compact({**signed, "signature": ""}))
        message = b"fedsynth keys 1" + b"".join(len(part).to_bytes(8) + part for part in parts)
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signed["signature"]), message)
        except InvalidSignature:
            yield f"the signature of {name} is wrong, or by another key than {key}"
        if signed["manifest"] != hashlib.sha256(compact(manifest)).hexdigest() or signed["name"] != name:
            yield f"the signature of {name} is of another manifest"


def delta_of(rho: float, epsilon: float) -> float:
    """Return the delta of Gaussian noise with this rho of zero-concentrated privacy (Balle & Wang, 2018)."""
    mu = math.sqrt(2 * rho)
    return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)


def cost(ledger: dict):
    """Yield where the prices of the releases do not add up to what the ledger says, or exceed the budget.

    Gaussian releases alone are added up here; if there are others, nothing is, and their kinds are printed.
    """
    if others := {entry["release"]["type"] for entry in ledger["entries"]} - {"gaussian"}:
        print(
            f"not added up: there are releases of the kinds {', '.join(sorted(others))}; fedsynth verify adds them up"
        )
        return
    epsilon, delta = ledger["budget"]["epsilon"], ledger["budget"]["delta"]
    for site, told in ledger["per_site"].items():
        rho = math.fsum(entry["cost"]["rho"] for entry in ledger["entries"] if site in entry["sites"])
        if not math.isclose(rho, told["rho"], rel_tol=1e-9):
            yield f"the releases of {site} cost rho = {rho}, and the ledger says {told['rho']}"
        if delta_of(rho, epsilon) > delta * (1 + 1e-6):
            yield f"the releases of {site} exceed the budget: delta = {delta_of(rho, epsilon)} at epsilon = {epsilon}"


def shares(rows: list[dict], columns: list[str], cuts: dict) -> list[float]:
    """Return the share of each combination of values that occurs, ascending; numbers by their group between cuts."""

    def cell(name: str, value: str) -> object:
        return bisect_right(cuts[name], float(value)) if name in cuts and value else value

    counts = Counter(tuple(cell(name, row[name]) for name in columns) for row in rows)
    return sorted(count / len(rows) for count in counts.values())


def criteria(pack: Path):
    """Yield which verdicts do not follow from the answers, and which numbers of the rows are not theirs.

    Cross tables of all rows by categories or between declared cuts are counted anew; of other kinds, the rows' numbers
    are taken from ``answers.json``. The bounds of quantiles and correlations are not symmetrical, so that their
    verdicts do not follow from ``answers.json``. What is not checked is printed.
    """
    answers = json.loads((pack / "answers" / "answers.json").read_text())
    job = tomllib.loads((pack / "proof" / "run.toml").read_text())
    schema = tomllib.loads((pack / "proof" / "schema.toml").read_text())
    cuts = job.get("cuts", {})
    countable = {
        *cuts,
        *(column["name"] for column in schema["column"] if column["type"] in ("categorical", "boolean")),
    }
    with (pack / "data" / "synthetic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_question = {}
    for answer in answers["answers"]:
        of_question.setdefault(answer["question"], []).append(answer)
    counted, followed = [], []
    for asked, judged in zip(job.get("criterion", ()), answers["criteria"], strict=True):
        name, some = judged["criterion"], of_question[judged["criterion"]]
        if asked["kind"] == "cross" and not asked.get("among") and countable.issuperset(asked["columns"]):
            counted.append(name)
            told = sorted(answer["in_rows"] for answer in some if answer["in_rows"])
            own = shares(rows, asked["columns"], cuts)
            if len(own) != len(told) or not all(map(math.isclose, own, told)):
                yield f"{name}: the rows have other shares than answers.json says"
        unknown = any(None in (answer["value"], answer["in_rows"]) for answer in some)
        if asked["kind"] in ("quantile", "correlation") or unknown:
            continue
        followed.append(name)
        wider = normal.inv_cdf(1 - 0.025 / len(some)) / normal.inv_cdf(0.975)
        worst = max(abs(answer["in_rows"] - answer["value"]) + wider * answer["noise"] for answer in some)
        if (worst <= asked["tolerance"]) != (judged["verdict"] == "met"):
            yield f"{name}: {judged['verdict']!r}, with rows up to {worst:.4g} off"
    verdicts = Counter(judged["verdict"] for judged in answers["criteria"])
    names = [judged["criterion"] for judged in answers["criteria"]]
    print(f"criteria: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items()) or 'none'}")
    print(f"rows not counted anew: {'; '.join(name for name in names if name not in counted) or 'none'}")
    print(f"verdicts not computed anew: {'; '.join(name for name in names if name not in followed) or 'none'}")


def main() -> None:
    """Print what does not hold, and say whether all of the pack does."""
    pack, keys = Path(sys.argv[1]), dict(word.split("=", 1) for word in sys.argv[2:])
    manifest = json.loads((pack / "manifest.json").read_text())
    ledger = json.loads((pack / "proof" / "ledger.json").read_text())
    problems = [*files(pack, manifest), *signatures(pack, manifest, keys), *cost(ledger)]
    if (pack / "answers" / "answers.json").is_file():
        problems += criteria(pack)
    print(*(f"PROBLEM: {problem}" for problem in problems), sep="\n", end="\n" * bool(problems))
    print("NOT VERIFIED" if problems else f"verified: {len(manifest['files'])} files")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
