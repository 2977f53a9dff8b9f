"""The findings of ``slidegate check``: those of the gates themselves, and those that only a look from outside shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from inspect import isawaitable
from statistics import median
from time import perf_counter_ns, time_ns
from typing import Final

from starlette.middleware.cors import CORSMiddleware

from ...core.errors import StoreError
from ...core.logs import written
from ...limiter import Limiter
from ...web.checks import Finding
from ...web.middleware import RateLimitMiddleware
from ...web.routes import layers
from .routes_seen import places_of, uncovered

SUBJECTS: Final = {
    "SG201": "the application has no gate",
    "SG202": "the store cannot be reached",
    "SG203": "the store is slow",
    "SG204": "scripts in browsers cannot read the header fields",
    "SG205": "no rule covers a route",
    "SG207": "the clock of the store is another one",
}
"""The codes of findings that only `slidegate check` has, with their subjects."""
FIELDS: Final = ("Retry-After", "RateLimit", "RateLimit-Policy")
_ASKED: Final = 20
_MOST_AHEAD_US: Final = 2_000_000


def about_gates(gates: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the start-up findings of the gates."""
    if not gates:
        yield Finding(
            "SG201",
            "the application has no RateLimitMiddleware, so nothing is limited; write "
            'app.add_middleware(RateLimitMiddleware, limits="100/minute")',
        )
    for gate in gates:
        yield from gate.findings


async def about_store(limiter: Limiter, name: str) -> AsyncIterator[Finding]:
    """Yield the findings about a store; it is asked a few times, and nothing is counted."""
    if limiter.engine.per_process:
        return
    taken_us: list[float] = []
    ahead_us = 0.0
    try:
        stats = limiter.store.shared_stats
        for _ in range(_ASKED):
            if stats is None:
                break
            before_ns = perf_counter_ns()
            answer = stats.time()
            if isawaitable(answer):
                # A server elsewhere, whose clock is not that of this host.
                ahead_us = await answer - time_ns() / 1_000
            taken_us.append((perf_counter_ns() - before_ns) / 1_000)
    except StoreError as error:
        yield Finding(
            "SG202", f"{name} does not answer: {written(error, str)}; is the address right, and the server up?"
        )
        return
    if abs(ahead_us) > _MOST_AHEAD_US:
        yield Finding(
            "SG207",
            f"the clock of {name} differs from this host's by {ahead_us / 1_000_000:+.1f} s; let both follow a time "
            "server",
        )
    failover = limiter.engine.failover
    if failover is not None and taken_us and median(taken_us) * 2 > failover.deadline_us:
        yield Finding(
            "SG203",
            f"{name} answers in {median(taken_us) / 1_000:.1f} ms, more than half of the deadline of "
            f"{failover.deadline_us / 1_000:.1f} ms; raise the deadline, or move the store nearer",
        )


def about_fields(app: object) -> Iterator[Finding]:
    """Yield the finding that CORSMiddleware outside a gate exposes no fields of it."""
    stack = getattr(app, "middleware_stack", None) or app
    for layer in layers(stack):
        if isinstance(layer, RateLimitMiddleware):
            return
        if isinstance(layer, CORSMiddleware):
            exposed = layer.simple_headers.get("Access-Control-Expose-Headers", "").lower()
            names = {name.strip() for name in exposed.split(",")}
            hidden = [field for field in FIELDS if field.lower() not in names]
            if hidden and "*" not in names:
                yield Finding(
                    "SG204",
                    f"CORSMiddleware does not expose {', '.join(hidden)}; write expose_headers={list(FIELDS)!r}",
                )


def about_routes(app: object, gates: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the findings about routes without rules."""
    places = places_of(app)
    if not gates or not places:
        return
    for place in uncovered(gates, places):
        yield Finding("SG205", f"no rule covers {place.label}; write a rule for it, or one with exempt=True")
