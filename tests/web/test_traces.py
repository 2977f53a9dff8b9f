"""The way of a request through the files, as docs/design.md shows it: it stays short, and the page tells the truth."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts import trace_request

ROOT = Path(__file__).resolve().parents[2]

# kind of request -> status, most calls, most files
MOST = {
    "admitted": (200, 10, 8),
    "refused": (429, 12, 8),
    "banned": (403, 48, 17),
    "refused, with a strike": (429, 65, 25),
}
CONTROL = {"web/middleware.py", "web/gate.py", "web/judge.py", "web/answers/refusals.py", "web/answers/sending.py"}
"""The files of the control flow, without those of bans."""


class Trace(NamedTuple):
    """A trace as the script writes it."""

    status: int
    calls: int
    files: set[str]


@pytest.fixture(scope="module")
def shown() -> str:
    """The output of the script, in a process that nothing else has run in."""
    return subprocess.run(
        [sys.executable, "-m", "scripts.trace_request"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def traces(shown: str) -> dict[str, Trace]:
    found = {}
    for part in shown.split("\n\n"):
        head, *lines = part.splitlines()
        told = re.fullmatch(r"(.+): (\d+), (\d+) calls in \d+ files", head)
        assert told is not None, head
        found[told[1]] = Trace(int(told[2]), int(told[3]), {line.strip().partition(": ")[0] for line in lines})
    return found


@pytest.mark.parametrize("kind", MOST)
def test_the_way_of_a_request_stays_short(kind: str, traces: dict[str, Trace]) -> None:
    status, calls, files = MOST[kind]
    assert traces[kind].status == status
    assert traces[kind].calls <= calls
    assert len(traces[kind].files) <= files


@pytest.mark.parametrize("kind", MOST)
def test_the_control_flow_of_a_request_stays_in_five_files(kind: str, traces: dict[str, Trace]) -> None:
    figures = ("web/answers/feed.py", "web/answers/traffic.py")
    helpers = ("web/record.py", "web/keys/", "web/rules/", "web/paths/", "web/answers/header_fields.py", *figures)
    outside = {file for file in traces[kind].files if file.startswith("web/") and not file.startswith(helpers)}
    assert outside - CONTROL <= ({"web/bans/signals.py"} if "strike" in kind else set())


def test_the_design_shows_the_traces_of_today(shown: str) -> None:
    (page,) = trace_request.FENCE.findall(trace_request.PAGE.read_text("utf-8"))
    assert page == shown, "run python3 scripts/trace_request.py --write"
