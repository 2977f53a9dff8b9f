"""Each benchmark runs with small numbers and prints a table, and a request costs no more work than it should."""

import os
import re
import subprocess
import sys

import pytest

from benchmarks import rounds
from benchmarks.__main__ import NAMES

SMALL = {
    "bytecodes": ["--only", "default"],
    "limiter": ["--processes", "1", "--rounds", "1", "--only", "slidegate"],
    "real": ["--processes", "1", "--rounds", "1", "--only", "default"],
    "lmdb": ["--rounds", "1", "--seconds", "0.1"],
    "redis": ["--rounds", "1", "--seconds", "0.05"],
    "memory": ["--keys", "20000", "--rounds", "1"],
}
CEILINGS: dict[str, tuple[int, int]] = {
    "default": (565, 10),
    "two windows": (724, 12),
    "everything": (674, 11),
    "everything, statistics": (880, 16),
    "everything, Prometheus": (880, 16),
    "header key": (726, 15),
    "header key, 100,000 values": (909, 21),
    "count_if": (826, 19),
    "condition": (867, 18),
    "shadow": (986, 20),
    "idle wait": (783, 18),
    "concurrency": (1296, 31),
    "refused by a limit": (782, 15),
    "an address banned": (631, 11),
    "dependency": (866, 20),
    "dependency, refused": (1150, 28),
}
"""How many bytecodes and Python calls one request may cost on CPython 3.11: what it costs, or less."""


def run(name: str, flags: list[str]) -> str:
    # A separate process, because benchmarks fork, disable logging and change the garbage collector.
    environment = {**os.environ, "PYTHONPATH": f"{rounds.ROOT / 'src'}{os.pathsep}{rounds.ROOT}"}
    line = [sys.executable, "-m", "benchmarks", name, *flags]
    ended = subprocess.run(line, cwd=rounds.ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *SMALL.items(),
        ("redis", ["--leases", "--rounds", "1", "--seconds", "0.05"]),
    ],
)
def test_a_small_run_of_a_benchmark_ends_well(name: str, flags: list[str]) -> None:
    assert {*SMALL} == {*NAMES}
    shown = run(name, flags)
    assert re.search(r"^\| -", shown, re.MULTILINE)
    assert f"`python3 dev.py bench {name}" in shown


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="each version has bytecodes of its own")
@pytest.mark.skipif(any(name.startswith("COVERAGE_PROCESS") for name in os.environ), reason="coverage counts, too")
def test_one_request_costs_no_more_bytecodes_and_calls_than_it_should() -> None:
    shown = run("bytecodes", [flag for row in CEILINGS for flag in ("--only", row)])
    found = re.findall(r"^\| (.+) \| ([0-9,]+) \| ([0-9]+) \|$", shown, re.MULTILINE)
    costs = {row: (int(bytecodes.replace(",", "")), int(calls)) for row, bytecodes, calls in found}
    assert costs.keys() == CEILINGS.keys()
    dearer = [row for row, most in CEILINGS.items() if costs[row][0] > most[0] or costs[row][1] > most[1]]
    assert [f"{row}: {costs[row]}, and at most {CEILINGS[row]}" for row in dearer] == [], shown


# -- one set of numbers on all pages -----------------------------------------------------------------------------------


def measured() -> dict[str, dict[str, list[str]]]:
    """Return the cells of the table by group and row: for the source, and for the wheel or an empty text."""
    groups: dict[str, dict[str, list[str]]] = {}
    page = (rounds.ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for name, *cells in re.findall(r"^\| (.+?) \| (.*?) ?\| (.*?) ?\|$", page, re.MULTILINE):
        if name.startswith("**"):
            rows = groups[name.strip("*")] = {}
        elif groups:
            rows[name] = cells
    return groups


def shown() -> dict[str, list[str]]:
    """Return the sentences of each page that have numbers of a benchmark, as the table of benchmarks shows them."""
    groups = measured()
    added = groups["Microseconds that a limit adds to a request"]
    us = {label: [float(cell) for cell in cells if cell] for label, cells in added.items()}
    ours, compiled = us["slidegate"]
    peer, endpoint, its_endpoint = (
        us[label][0] for label in ("asgi-ratelimit", "slidegate, FastAPI dependency", "fastapi-limiter, dependency")
    )
    source = {name: cells[0] for rows in groups.values() for name, cells in rows.items()}
    statistics = ("everything, with statistics", "everything, with Prometheus")
    dear, permits = sorted(float(source[name]) for name in statistics), float(source["`concurrency`"])
    refused, decorated = source["dependency, refused"], source["decorator, refused"]
    ratio, ratio_compiled = map(float, groups["What an admitted request costs, relative to asgi-ratelimit"]["default"])
    fast, fast_compiled = map(float, groups["`await limiter.hit` in memory, times as fast as limits"]["admitted"])
    gained = f"{100 * (ratio - ratio_compiled) / ratio:.0f} %"
    gained_by_hit = f"{100 * (fast_compiled - fast) / fast_compiled:.0f} %"
    return {
        "README.md": [
            f"A limit adds {ours:.1f} us to a request: {ratio:.2f} times what asgi-ratelimit adds, the leanest peer. "
            f"The [compiled wheel](docs/reference/api.md#a-compiled-wheel) adds {gained} less. At an endpoint "
            f"slidegate adds {endpoint:.0f} us, and fastapi-limiter {its_endpoint:.0f} us",
        ],
        "docs/reference/api.md": [f"the middleware adds {gained} less"],
        "benchmarks/README.md": [
            f"{ours:.1f} / {peer:.1f} is {ours / peer:.2f}, and the ratio is {ratio:.2f}",
            f"the {compiled:.1f} us in its column are {ratio_compiled:.2f} times",
            f"the middleware adds {gained} less, and a hit in memory takes {gained_by_hit} less",
            f"**Default** costs {ratio:.2f} times what asgi-ratelimit adds",
            f"**Statistics and Prometheus** cost {dear[-1]:.1f} times as much, permits {permits:.1f} times",
            f"**A refusal at an endpoint** costs {refused} to {decorated} times fastapi-limiter's",
        ],
    }


def test_all_pages_show_the_numbers_of_one_table() -> None:
    pages = {page: " ".join((rounds.ROOT / page).read_text("utf-8").split()) for page in shown()}
    assert [one for page, sentences in shown().items() for one in sentences if one not in pages[page]] == []
