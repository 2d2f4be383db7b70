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

    Gaussian releases alone are added up here; others are named.
    """
    if others := {entry["release"]["type"] for entry in ledger["entries"]} - {"gaussian"}:
        print(f"not added up here: releases of the kinds {', '.join(sorted(others))}; fedsynth verify does")
        return
    for site, told in ledger["per_site"].items():
        rho = math.fsum(entry["release"]["rho"] for entry in ledger["entries"] if site in entry["sites"])
        if not math.isclose(rho, told["rho"], rel_tol=1e-9):
            yield f"the releases of {site} cost rho = {rho}, and the ledger says {told['rho']}"
        epsilon, delta = ledger["budget"]["epsilon"], ledger["budget"]["delta"]
        if delta_of(rho, epsilon) > delta * (1 + 1e-6):
            yield f"the releases of {site} exceed the budget: delta = {delta_of(rho, epsilon)} at epsilon = {epsilon}"


def shares(rows: list[dict], columns: list[str], cuts: dict) -> Counter:
    """Return the share of each combination of values, numbers by their group between cuts."""
    cells = (
        [bisect_right(cuts[name], float(row[name])) if name in cuts else row[name] for name in columns] for row in rows
    )
    counts = Counter(map(tuple, cells))
    return Counter({cell: count / len(rows) for cell, count in counts.items()})


def criteria(pack: Path):
    """Yield which verdicts do not follow from the answers, and which numbers of the rows are not theirs.

    Cross tables of all rows are counted anew; of other kinds, the rows' numbers are taken from ``answers.json``.
    Quantiles have cells of their own, which only ``fedsynth verify`` knows.
    """
    answers = json.loads((pack / "answers" / "answers.json").read_text())
    job = tomllib.loads((pack / "proof" / "run.toml").read_text())
    with (pack / "data" / "synthetic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_question = {}
    for answer in answers["answers"]:
        of_question.setdefault(answer["question"], []).append(answer)
    for asked, judged in zip(job.get("criterion", ()), answers["criteria"], strict=True):
        some = of_question[judged["criterion"]]
        if asked["kind"] == "cross" and "among" not in asked:
            counted = sorted(shares(rows, asked["columns"], job.get("cuts", {})).values())
            told = sorted(answer["in_rows"] for answer in some if answer["in_rows"])
            if not all(map(math.isclose, counted, told)) or len(counted) != len(told):
                yield f"{judged['criterion']}: the rows have other shares than answers.json says"
        if asked["kind"] == "quantile" or any(answer["value"] is None for answer in some):
            continue
        wider = normal.inv_cdf(1 - 0.025 / len(some)) / normal.inv_cdf(0.975)
        worst = max(abs(answer["in_rows"] - answer["value"]) + wider * answer["noise"] for answer in some)
        if (worst <= asked["tolerance"]) != (judged["verdict"] == "met"):
            yield f"{judged['criterion']}: {judged['verdict']!r}, with rows up to {worst:.4g} off"
    print(f"criteria: {dict(Counter(judged['verdict'] for judged in answers['criteria']))}")


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
