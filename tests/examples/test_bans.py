"""The ban example does what it says, on its sample and on real logs.

Whom a test is about is found by what they do. The real logs are read where they lie; without them, the sample remains.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from ipaddress import IPv4Network, ip_address, ip_network
from pathlib import Path

import pytest

from examples.bans import __main__ as command
from examples.bans.replay import Report, replay_bans
from slidegate.logs import AccessLogs, AccessRecord

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SLIDEGATE_DATA") or ROOT.parent / "shared" / "data")
SAMPLE = "sample.log"
FARM = "farm-apache-2024-2025.combined.log"
ERDDAP = "erddap-nginx-2024.combined.log"
NGINX = "heavymetalpedal-nginx-2026.jsonl"
ORDINARY = "semicomplete-2015.combined.log"
SCANNED = {SAMPLE: 2, FARM: 15, NGINX: 6, ERDDAP: 1}
"""At least so many scanners are in there."""
LOGS = [
    *SCANNED,
    ORDINARY,
    "farm-apache-2024-10.vhost_combined.log",
    "crowdsec-l7-dos.combined.log",
    "crowdsec-traefik.jsonl",
]
UNBANNABLE = [ip_network(text) for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
HOUR_S = 3_600


@cache
def read(name: str) -> tuple[AccessRecord, ...]:
    path = command.SAMPLE if name == SAMPLE else DATA / "logs" / name
    if not path.is_file():
        pytest.skip(f"no real logs: {path} is not there; SLIDEGATE_DATA names the folder of another place")
    return tuple(sorted((record for record in AccessLogs([path]) if record.method), key=lambda record: record.time_us))


@cache
def report_of(name: str) -> Report:
    return asyncio.run(replay_bans(read(name)))


def by_client(records: Iterable[AccessRecord]) -> dict[str, list[AccessRecord]]:
    found: dict[str, list[AccessRecord]] = defaultdict(list)
    for record in records:
        found[record.client].append(record)
    return found


def errors(records: Iterable[AccessRecord]) -> list[AccessRecord]:
    return [record for record in records if 400 <= record.status < 500]


def most_within(records: Iterable[AccessRecord], window_s: int) -> int:
    times_us = sorted(record.time_us for record in records)
    most = first = 0
    for place, time_us in enumerate(times_us):
        while times_us[first] <= time_us - window_s * 1_000_000:
            first += 1
        most = max(most, place + 1 - first)
    return most


def is_private(client: str) -> bool:
    return any(ip_address(client) in network for network in UNBANNABLE)


def scanners(name: str) -> dict[str, list[AccessRecord]]:
    """Return who made 50 requests or more, nine of ten in vain, for ten different things or more."""
    return {
        client: own
        for client, own in by_client(read(name)).items()
        if len(own) >= 50
        and len(errors(own)) >= 0.9 * len(own)
        and len({record.path for record in errors(own)}) >= 10
        and not is_private(client)
    }


def clean(name: str) -> set[str]:
    return {client for client, own in by_client(read(name)).items() if not errors(own)}


def network_of(client: str) -> IPv4Network | None:
    return None if ":" in client else IPv4Network(f"{client}/24", strict=False)


def attacks(name: str) -> dict[IPv4Network, list[AccessRecord]]:
    """Return what came to the login from networks that sent more than a hundred passwords in an hour."""
    found: dict[IPv4Network, list[AccessRecord]] = defaultdict(list)
    for record in read(name):
        network = network_of(record.client)
        if network is not None and (record.method, record.path) == ("POST", "/login"):
            found[network].append(record)
    return {network: own for network, own in found.items() if most_within(own, HOUR_S) > 100}


def heaviest_honest(name: str) -> str:
    """Return who made most requests, of those with less than five errors in a hundred."""
    found = by_client(read(name))
    honest = [client for client, own in found.items() if len(errors(own)) < 0.05 * len(own)]
    return max(honest, key=lambda client: len(found[client]))


# Who is banned


@pytest.mark.parametrize("name", SCANNED)
def test_every_scanner_is_banned(name: str) -> None:
    found = scanners(name)
    assert len(found) >= SCANNED[name]
    assert found.keys() <= report_of(name).banned
    for client, own in found.items():
        assert report_of(name).clients[client].refusal > 0.1 * len(own), "soon enough to matter"


# Who is not


@pytest.mark.parametrize("name", LOGS)
def test_nobody_is_banned_who_finds_nine_things_of_ten_or_is_private(name: str) -> None:
    report, found = report_of(name), by_client(read(name))
    mostly = {client for client, own in found.items() if len(errors(own)) <= 0.1 * len(own)}
    assert not mostly & report.banned
    assert not {client for client in report.banned if is_private(client)}
    assert report.private == {client for client in found if is_private(client)}
    guessing = {record.client for own in attacks(name).values() for record in own}
    assert not (clean(name) - guessing) & report.limited("all", "login", "login-network").keys()


@pytest.mark.parametrize(("name", "least"), [(FARM, 3_000), (ERDDAP, 4_000), (SAMPLE, 2_000)])
def test_the_heaviest_honest_client_is_not_touched(name: str, least: int) -> None:
    client = heaviest_honest(name)
    visits = report_of(name).clients[client]
    assert visits.requests == len(by_client(read(name))[client]) > least
    assert (visits.refusal, visits.limited.total()) == (0, 0)
    assert client not in report_of(name).banned


# Passwords


def test_an_attack_whose_tries_are_answered_with_401_is_banned() -> None:
    attackers = ("203.0.113.16", "203.0.113.40", "203.0.113.74", "203.0.113.140")
    (ban,) = [ban for ban in report_of(SAMPLE).bans if ban.by == "guessing"]
    assert {str(network_of(client)) for client in attackers} == {ban.key}
    for client in attackers:
        visits = report_of(SAMPLE).clients[client]
        assert visits.requests - visits.refusal < 20


# The command


@pytest.mark.parametrize("name", [SAMPLE, FARM, ERDDAP, NGINX, ORDINARY])
def test_the_printed_counts_are_those_of_the_log(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    records, report = read(name), report_of(name)
    path = command.SAMPLE if name == SAMPLE else DATA / "logs" / name
    assert command.main([str(path)]) == 0
    out = capsys.readouterr().out
    shown = {
        line[:18].strip(): [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line[18:])]
        for line in out.splitlines()
    }
    found, bad = by_client(records), scanners(name)
    passwords = sum(report.limited("login-network").values())
    assert shown["Requests"] == [len(records), len(found)]
    assert shown["Loopback, private"] == [sum(map(is_private, found))]
    assert shown["Scanners"] == [len(bad), len(bad)]
    assert shown["Bans"] == [
        len(report.bans), sum(ban.by != "scanning" for ban in report.bans), len(report.banned)
    ]  # fmt: skip
    assert shown["Refused by bans"] == [sum(visits.refusal for visits in report.clients.values())]
    assert shown["Refused by limits"] == [passwords, len(report.limited("login-network")), 0]
    assert shown["Never an error"] == [len(clean(name)), 0, 0]
    assert not [client for client in found if re.search(rf"(?<![\w.:]){re.escape(client)}(?![\w.:])", out)]


def test_a_log_that_is_not_there_gives_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nowhere.log"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("bans: cannot read 'nowhere.log': No such file or directory; expected")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
