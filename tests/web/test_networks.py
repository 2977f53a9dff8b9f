"""Clients by network: addresses of one operator or one country share limits, conditions and bans."""

import json
import os
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware, network
from slidegate.dashboard import Dashboard
from slidegate.web.networks import NetworkFile

from ..asgi import call, hello
from ..hurry import at_once
from .network_files import ASN, OTHER, TENCENT, countries, operators, written


@pytest.mark.parametrize(
    ("record", "by", "key"),
    [
        ({"asn": "AS15169", "as_name": "Google", "country_code": "US"}, None, "asn:15169"),
        ({"asn": "AS15169", "as_name": "Google", "country_code": "US"}, "country", "country:US"),
        ({"country": "US", "country_name": "United States"}, None, "country:US"),
        ({"country": {"iso_code": "US"}, "city": {"names": {"en": "Here"}}}, None, "country:US"),
        ({"autonomous_system_number": 15169}, None, "asn:15169"),
    ],
)
def test_files_of_several_makers_are_read(tmp_path: Path, record: Any, by: Any, key: str) -> None:
    found = network(written(tmp_path / "any.mmdb", {"8.8.8.0/24": record}), by=by)
    assert found.find({}, Limiter(), "8.8.8.8") == key


@pytest.mark.parametrize("network", ["10.1.2.3/32", "8.0.0.0/6", "192.168.0.0/15", "fd00::/8", "fe00::/8", "::1/128"])
@pytest.mark.parametrize("version", [4, 6])
def test_private_addresses_are_unknown_whatever_a_file_says(tmp_path: Path, network: str, version: int) -> None:
    if version == 4 and ":" in network:
        network = "0.0.0.0/1"
    found = NetworkFile(str(written(tmp_path / "asn.mmdb", {network: OTHER, "203.0.0.0/16": TENCENT}, version)))
    private = "10.1.2.3", "192.168.0.1", "fd00::/64", "fe80::/64", "::1"
    assert {found.find(key).asn for key in private} == {None}
    assert found.find("203.0.113.1").asn == 132203
    held = ip_network(network)
    for key in ("9.9.9.9", "192.169.0.1", "fe00::/64"):
        address = ip_address(key.partition("/")[0])
        is_held = address.version == held.version and address in held
        assert found.find(key).asn == (64500 if is_held else None), key


async def test_a_file_that_is_cut_in_place_while_threads_look_up_ends_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "asn.mmdb", ASN)
    found, seen = network(path), set()

    def ask(thread: int) -> None:
        for number in range(3_000):
            if (thread, number) == (0, 100):
                os.truncate(path, 10)
            seen.add(found.file._find(f"43.128.{number % 250}.1").asn)

    at_once(ask, 4)
    assert seen == {132203}


@settings(max_examples=60)
@given(damage=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), min_size=1, max_size=40))
def test_a_damaged_file_is_refused_or_knows_less_and_raises_nothing_at_a_request(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    path = written(tmp_path_factory.mktemp("damaged") / "asn.mmdb", ASN)
    content = bytearray(path.read_bytes())
    for at, byte in damage:
        content[at % len(content)] = byte
    path.write_bytes(content)
    try:
        found = network(path)
    except ConfigurationError:
        return
    for key in ("43.128.0.1", "101.32.5.5", "2402:4e00::/64", "8.8.8.8", "unknown-peer"):
        assert found.find({}, Limiter(), key).startswith(("asn:", "country:"))


async def test_the_dashboard_shows_which_clients_the_ban_of_an_operator_refuses(tmp_path: Path) -> None:
    limiter = Limiter(networks=[operators(tmp_path), countries(tmp_path)])
    dashboard = Dashboard(limiter, token=None)
    app = RateLimitMiddleware(hello, limits="5/hour", limiter=limiter)
    clients = ("43.128.0.1", "203.0.113.9", "8.8.8.8")
    for client in clients:
        await call(app, client=(client, 1))
    await limiter.ban("asn:132203", "1d")
    found = {}
    for client in clients:
        answer = await call(dashboard, "/api/client", query_string=f"key={client}".encode())
        ban = json.loads(answer.body)["ban"]
        found[client] = None if ban is None else ban["key"]
    assert found == {"43.128.0.1": "asn:132203", "203.0.113.9": None, "8.8.8.8": None}
