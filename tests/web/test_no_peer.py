"""Requests for which the server names no peer: one bucket, unless the connection must have been reset."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, client_ip
from slidegate.testing import FakeClock

from ..asgi import call, hello, scope_of, send_scope, statuses

ON_A_PORT = ("app.test", 443)
ON_A_SOCKET = ("/run/app.sock", None)
LISTED, ALLOWED, OTHER = "192.0.2.7", "192.0.2.8", "198.51.100.9"
AMOUNT = 2

CLIENTS = st.sampled_from([None, LISTED, ALLOWED, OTHER])
SCOPES = st.tuples(CLIENTS, st.sampled_from([None, ON_A_SOCKET, ON_A_PORT, ["::1", 8000]]), st.booleans())
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "blocklist": st.sampled_from([Networks([LISTED]), Networks([])]),
        "allowlist": st.just(Networks([ALLOWED])),
        "bans": st.sampled_from([BanPolicy("100/10m", "1h"), []]),
    },
)


def guarded(**options: Any) -> RateLimitMiddleware:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    return RateLimitMiddleware(hello, limits=f"{AMOUNT}/hour", limiter=limiter, **options)


class Model:
    """The ruling in a few lines: who is refused as gone, and which bucket counts everybody else."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.looks_at_peers = "blocklist" in options or bool(options.get("bans"))
        self.named = self.found = False
        self.counts: dict[str, int] = {}

    def status(self, client: str | None, server: Any) -> int:
        if client is None:
            if self.looks_at_peers and self.named and server is not None and server[1] is not None:
                return 403
            self.found = True
        else:
            self.named = True
        if client == ALLOWED and "allowlist" in self.options:
            return 200
        if client == LISTED and self.options.get("blocklist"):
            return 403
        bucket = client or "unknown-peer"
        if self.counts.get(bucket, 0) == AMOUNT:
            return 429
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        return 200


@given(OPTIONS, st.lists(SCOPES, max_size=12))
async def test_a_request_without_a_peer_is_one_bucket_unless_its_connection_must_be_gone(
    options: dict[str, Any], asked: list[tuple[str | None, Any, bool]]
) -> None:
    app, model = guarded(**options), Model(options)
    for client, server, mentioned in asked:
        scope = scope_of(client=client and (client, 1), server=server)
        if client is None and not mentioned:
            del scope["client"]
        assert (await send_scope(app, scope)).status == model.status(client, server)
    assert [finding.code for finding in app.findings] == ["SG109"] * model.found


@pytest.mark.parametrize("options", [{}, {"blocklist": Networks([LISTED])}, {"bans": BanPolicy("20/10m", "1h")}])
async def test_an_adapter_that_never_names_a_peer_serves_its_application(options: dict[str, Any]) -> None:
    app = guarded(**options)
    assert await statuses(app, 3, client=None, server=ON_A_PORT) == [200, 200, 429]


@pytest.mark.parametrize("named", [False, True])
async def test_a_forged_header_divides_no_bucket_where_the_server_on_a_port_names_no_peer(named: bool) -> None:
    """Whoever resets its connections would else be another client each time."""
    app = guarded(client=client_ip(trusted=["unix", "10.0.0.0/8"]))
    if named:
        await call(app)
    answers = [
        await call(app, client=None, server=ON_A_PORT, headers={"X-Forwarded-For": f"198.51.100.{last}"})
        for last in range(4)
    ]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]


async def test_behind_a_known_number_of_proxies_the_header_names_clients_also_without_a_peer() -> None:
    app = guarded(client=client_ip(trusted=1))
    for last in range(3):
        headers = {"X-Forwarded-For": f"198.51.100.{last}"}
        assert await statuses(app, 3, client=None, server=ON_A_PORT, headers=headers) == [200, 200, 429]
