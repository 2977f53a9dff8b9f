"""Each scene of the floods runs at a hundredth of its size, and no honest request is refused."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.asgi import scope_of
from benchmarks.floods import SCENES
from benchmarks.scenes.field import HONEST, play, played

SCALE = 0.01
ANSWERS = {
    "150,000 IPv4 addresses": {"200": 1_500},
    "150,000 addresses of an IPv6 /48": {"200": 1_500},
    "150,000 header values, some of 8 kB": {"200": 1_500},
    "50,000 paths, 1,000 rules": {"200": 168, "404": 332},
    "1,000 odd paths of 8 kB, 1,000 rules": {"404": 10},
    "5,000 requests, 2,500 waiting": {"200": 30, "429": 20},
    "1,000,000 bans end, 20,000 come": {"200": 200, "429": 1_000, "403": 200},
    "5,000 idle websockets, all banned": {"200": 50, "429": 250, "403": 50},
    "100,000 addresses, asgi-ratelimit": {"200": 1_000},
    "100,000 addresses, slowapi": {"200": 1_000},
}


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_runs_and_refuses_no_honest_request(name: str) -> None:
    seen = played(SCENES[name](SCALE))
    assert seen.statuses == ANSWERS[name]
    assert seen.refused == 0
    assert list(seen.p99_ms) == ["alone", "bare", "attack"]
    assert seen.longest_ms > 0


def test_a_refused_honest_request_and_a_long_step_are_seen() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        honest = scope["client"][0] == HONEST
        if not honest:
            sum(range(200_000))
        await send({"type": "http.response.start", "status": 429 if honest else 200, "headers": []})

    seen = played(play(app, app, lambda count: (scope_of("/", "203.0.113.1") for _ in range(count)), 50))
    assert seen.refused > 0
    assert seen.statuses == {"200": 50}
    assert seen.longest_ms > 0.2
