"""Names of sites and addresses of servers: what passes, and what would reach into a file or a command."""

from __future__ import annotations

import pytest
from tests.contract.world import SCHEMA, random_table

from fedsynth.errors import InvalidParameter
from fedsynth.federation.local import LocalNoise
from fedsynth.federation.names import RESERVED, check_site_name, parse_address
from fedsynth.federation.simulate import federate
from fedsynth.privacy.cost import Budget

BUDGET = Budget(1.0, 1e-6)
BAD_NAMES = (
    "", "-a", "1st", "North", "a_b", "a.b", "../x", "a/b", "a b", "a\n", "\na", "a\nb", "a;b", "$(id)", "é", "a٣",
    "a" * 32,
)  # fmt: skip


@pytest.mark.parametrize("name", ["a", "north", "site-000", "hospital-2-b", "z" * 31, "admin-a", "cas"])
def test_plain_names_pass(name):
    assert check_site_name(name) == name


@pytest.mark.parametrize("name", [*BAD_NAMES, "x" * 10_000])
def test_other_names_are_refused_in_one_short_line(name):
    with pytest.raises(InvalidParameter, match="lower-case letter") as raised:
        check_site_name(name)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_roles_and_files_of_a_deployment_are_no_sites(name):
    with pytest.raises(InvalidParameter, match=f"choose another, such as {name}-a"):
        check_site_name(name)
    assert check_site_name(f"{name}-a")


def test_a_simulation_has_the_same_rule():
    tables = [random_table(9, 0), random_table(9, 1)]
    assert federate(tables, SCHEMA, BUDGET, trust=LocalNoise()).sites == ("site-000", "site-001")
    for name in ("admin", "server", "North"):
        with pytest.raises(InvalidParameter, match=r"be a site's name|a valid site name"):
            federate({name: tables[0]}, SCHEMA, BUDGET, trust=LocalNoise())


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fed.example.org:443", "fed.example.org", 443),
        ("localhost:1", "localhost", 1),
        ("10.0.0.7:65535", "10.0.0.7", 65535),
        ("[::1]:443", "::1", 443),
    ],
)
def test_addresses_are_a_host_and_a_port(text, host, port):
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "", "host", "host:", ":443", "host:0", "host:65536", "host:-1", "host:+1", "host:1_0", "host:٤٤٣", "host:443\n",
        "x; } evil { :443", "a b:443", "a\nb:443", "-x:443", "a..b:443", "a/b:443", "a$b:443", "::1:443", "[::1:443",
        "[::1%eth0;]:443", "[x]:443", "u@h:443", "h" * 300 + ":443",
    ],
)  # fmt: skip
def test_other_addresses_are_refused(text):
    with pytest.raises(InvalidParameter, match="not of the form HOST:PORT; for example") as raised:
        parse_address(text)
    assert str(raised.value).isprintable()
