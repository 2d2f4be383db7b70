"""How often sites ask the server, as a function of their number and of when they last had a message."""

from __future__ import annotations

import pytest

from fedsynth.deploy.pace import SPREAD, Pace, uneven

EXECUTOR = 2.0  # requests a second of `fedsynth deploy serve`
FLOWER = 10.0, 1800.0  # s; what Flower takes for the time between two heartbeats, half of that until a site is away


@pytest.mark.parametrize(
    ("sites", "quiet", "pause"),
    [
        (3, 0.0, 0.5),
        (3, 5.0, 0.5),
        (3, 20.0, 2.0),
        (3, 50.0, 5.0),
        (3, float("inf"), 5.0),
        (30, 0.0, 3.0),
        (30, float("inf"), 30 / 3.5),
        (100, 0.0, 10.0),
        (100, 200.0, 20.0),
        (100, float("inf"), 100 / 3.5),
        (10**9, 0.0, 60.0),  # a roster that no honest coordinator would sign
        (10**9, float("inf"), 60.0),
        (0, 0.0, 0.5),  # a site that has no roster yet
        (0, float("inf"), 5.0),
    ],
)
def test_a_site_asks_often_only_where_a_message_is_due(sites, quiet, pause):
    assert Pace(sites).pause(quiet) == pytest.approx(pause)


def test_a_busy_server_is_asked_less_often():
    assert Pace(3).pause(0.0, lag=0.1) == pytest.approx(0.55)
    assert Pace(100).pause(0.0, lag=1.0) == pytest.approx(20.0)
    assert Pace(100).pause(0.0, lag=1e9) == Pace(100).idle


@pytest.mark.parametrize("sites", [1, 3, 17, 30, 100, 200])
def test_all_sites_together_ask_less_than_ten_times_a_second_while_idle(sites):
    pace = Pace(sites)
    mean = 1 - SPREAD / 2
    assert sites / (mean * pace.pause(float("inf"))) + sites / (mean * pace.heartbeat) + EXECUTOR < 10


@pytest.mark.parametrize("sites", [0, 1, 3, 30, 40, 100, 10**9])
def test_a_site_is_away_after_three_heartbeats_at_the_earliest(sites):
    pace = Pace(sites)
    assert pace.away >= max(30.0, 3 * pace.heartbeat)
    assert pace.away <= 180.0
    assert FLOWER[0] <= pace.away / 2 <= FLOWER[1]


def test_a_message_waits_for_a_tenth_of_the_time_since_the_one_before_at_most():
    pace = Pace(3)
    moment, asked = 0.0, []
    while moment < 600:
        moment += pace.pause(moment)
        asked.append(moment)
    for before, after in zip([0.0, *asked], asked, strict=False):
        assert after - before <= max(0.5, 0.1 * before) + 1e-9


def test_pauses_differ_and_are_never_longer():
    drawn = [uneven(10.0) for _ in range(200)]
    assert all(8.0 <= pause <= 10.0 for pause in drawn)
    assert max(drawn) - min(drawn) > 1.0
