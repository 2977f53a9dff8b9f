"""The way of a request through the files, as docs/design.md shows it: it stays short, and the page tells the truth."""

from __future__ import annotations

import asyncio

import pytest

from scripts import trace_request
from scripts.trace_request import Trace

# kind of request -> status, most calls, most files
MOST = {
    "admitted": (200, 26, 13),
    "refused": (429, 35, 15),
    "banned": (403, 49, 18),
    "refused, with a strike": (429, 69, 26),
}
CONTROL = {"web/middleware.py", "web/gate.py", "web/judge.py", "web/answers/refusals.py", "web/answers/sending.py"}
"""The files of the control flow, without those of bans."""


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return asyncio.run(trace_request.traces())


@pytest.mark.parametrize("kind", MOST)
def test_the_way_of_a_request_stays_short(kind: str, traces: dict[str, Trace]) -> None:
    status, calls, files = MOST[kind]
    assert traces[kind].status == status
    assert len(traces[kind].calls) <= calls
    assert len(traces[kind].files) <= files


@pytest.mark.parametrize("kind", MOST)
def test_the_control_flow_of_a_request_stays_in_five_files(kind: str, traces: dict[str, Trace]) -> None:
    helpers = ("web/keys/", "web/rules/", "web/paths/", "web/answers/header_fields.py", "web/answers/traffic.py")
    outside = {file for file in traces[kind].files if file.startswith("web/") and not file.startswith(helpers)}
    assert outside - CONTROL <= ({"web/bans/signals.py"} if "strike" in kind else set())


def test_the_design_shows_the_traces_of_today() -> None:
    (shown,) = trace_request.FENCE.findall(trace_request.PAGE.read_text("utf-8"))
    assert shown == trace_request.text(), "run python scripts/trace_request.py --write"
