"""Example tables and their schemas: made-up hospital patients, and a real public health survey.

Documentation and demo use them, and so may anybody: none needs a download.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import pandas as pd

from fedsynth.errors import InvalidParameter, from_extra
from fedsynth.schema import Boolean, Categorical, Numeric, Schema

__all__ = ["patients", "patients_schema", "patients_toml", "rand_hie", "rand_hie_schema"]


def patients(rows: int = 6000, hospital: int = 0) -> pd.DataFrame:
    """Return made-up patients of one hospital: ``rows`` rows, 6 columns; the same ones for the same arguments.

    No row is a real person. ``hospital`` (0, 1, 2, ...) is a seed, and hospitals differ in age, wards and size of the
    bills, so that several stand for sites whose tables are not alike. Raises :class:`~fedsynth.errors.InvalidParameter`
    for a negative number.
    """
    for name, number in (("rows", rows), ("hospital", hospital)):
        if number < 0:
            raise InvalidParameter(f"{name} is {number}; give 0 or more")
    rng = np.random.default_rng(hospital)
    wards = ("surgery", "medicine", "cardiology", "maternity")
    ward = rng.choice(wards, rows, p=[(0.4, 0.3, 0.2, 0.1), (0.2, 0.5, 0.2, 0.1), (0.2, 0.2, 0.3, 0.3)][hospital % 3])
    usual = pd.Series(ward).map({"surgery": 50, "medicine": 58, "cardiology": 68, "maternity": 31}).to_numpy(float)
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


def patients_schema() -> Schema:
    """Return the schema of :func:`patients`, with the rule that there are no men in the maternity ward."""
    return Schema.from_toml(patients_toml())


def patients_toml() -> str:
    """Return the same as the text of a schema file, with comments."""
    return (resources.files(__name__) / "patients.toml").read_text(encoding="utf-8")


def rand_hie() -> pd.DataFrame:
    """Return the RAND Health Insurance Experiment, a public table: 20,190 person-years (rows), 8 columns.

    The data come from statsmodels (``pip install 'fedsynth[demo]'``), which took them from Deb & Trivedi (2002, doi
    10.1016/S0167-6296(02)00008-5). Logarithms are undone, the indicators of self-rated health are merged into one
    ordered column, and imputed values of physical limitations (fractions) become missing. Raises :class:`Unsupported`
    without statsmodels.
    """
    with from_extra("demo", "the demo's table is part of statsmodels, which is not installed"):
        from statsmodels.datasets import randhie
    raw = randhie.load_pandas().data
    health = np.select([raw.hlthg == 1, raw.hlthf == 1, raw.hlthp == 1], ["good", "fair", "poor"], "excellent")
    limited = raw.physlm.round().astype("boolean").mask(~raw.physlm.isin([0, 1]))
    return pd.DataFrame(
        {
            "doctor_visits": raw.mdvis.astype("int64"),
            "coinsurance_percent": np.expm1(raw.lncoins).round().astype("int64"),
            "individual_deductible": raw.idp == 1,
            "participation_payment": np.where(raw.lpi > 0, np.exp(raw.lpi), 0.0).round(2),
            "maximum_expenditure": np.where(raw.fmde > 0, np.exp(raw.fmde), 0.0).round(2),
            "physical_limitation": limited,
            "chronic_diseases": raw.disea.round(1),
            "health": pd.Categorical(health, ["poor", "fair", "good", "excellent"], ordered=True),
        }
    )


def rand_hie_schema() -> Schema:
    """Return the schema of :func:`rand_hie`, written from the experiment's documentation and not from its rows."""
    dollars = (0.0, 1.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1500.0)
    ceilings = (0.0, 1.0, 250.0, 500.0, 750.0, 1000.0, 1250.0, 1500.0, 2000.0, 2500.0, 3000.0, 4000.0, 5000.0)
    visits = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50, 100)
    return Schema(
        (
            Numeric("doctor_visits", 0, 100, edges=visits, integer=True),
            Categorical("coinsurance_percent", (0, 25, 50, 95, 100)),
            Boolean("individual_deductible"),
            Numeric("participation_payment", 0.0, 1500.0, edges=dollars, decimals=2),
            Numeric("maximum_expenditure", 0.0, 5000.0, edges=ceilings, decimals=2),
            Boolean("physical_limitation", missing=True),
            Numeric("chronic_diseases", 0.0, 60.0, bins=24, decimals=1),
            Categorical("health", ("poor", "fair", "good", "excellent"), ordered=True),
        )
    )
