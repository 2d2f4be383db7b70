"""Generate a made-up table of hospital patients: no row is a real person, so examples may use it freely.

python patients.py 6000 patients.csv            one table
python patients.py 6000 north.csv south.csv     one table per file, each of a different hospital
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd

WARDS = ("surgery", "medicine", "cardiology", "maternity")


def patients(rows: int, hospital: int = 0) -> pd.DataFrame:
    """Return ``rows`` patients of a hospital; hospitals differ in age, wards and size of the bills."""
    rng = np.random.default_rng(hospital)
    ward = rng.choice(WARDS, rows, p=[(0.4, 0.3, 0.2, 0.1), (0.2, 0.5, 0.2, 0.1), (0.2, 0.2, 0.3, 0.3)][hospital % 3])
    usual = pd.Series(ward).map({"surgery": 50, "medicine": 58, "cardiology": 68, "maternity": 31}).to_numpy()
    age = np.clip(rng.normal(usual + 3 * (hospital % 3), np.where(ward == "maternity", 5, 14)), 0, 100).astype(int)
    sex = np.where((ward == "maternity") | (rng.random(rows) < 0.48), "f", "m")
    day_case = rng.random(rows) < np.where(ward == "surgery", 0.4, 0.15)
    nights = np.where(day_case, 0, np.clip(rng.gamma(1.5, 1 + age / 25), 1, 60)).astype(int)
    bill = np.round((400 + 650 * nights) * rng.lognormal(np.where(ward == "surgery", 0.6, 0.1), 0.4), 2)
    risk = 1 / (1 + np.exp(4 - 0.035 * age - 0.12 * np.minimum(nights, 20)))
    return pd.DataFrame(
        {
            "ward": ward,
            "sex": sex,
            "age": age,
            "nights": nights,
            "bill": np.minimum(bill, 60_000),
            "readmitted": np.where(rng.random(rows) < risk, "yes", "no"),
        }
    )


if __name__ == "__main__":
    count, *files = sys.argv[1:]
    for number, file in enumerate(files):
        patients(int(count), number).to_csv(file, index=False)
