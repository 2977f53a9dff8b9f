"""Requests that stay, and bans: waiting for a turn, and a million bans that end at once."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from starlette.types import Scope

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, Rule

from .field import Seen, loop_clock, play, scope_of
from .field import held_mib as memory_mib
from .floods import FIRST_IPV4, PLENTY, starlette

WAITING = 2_500
WAITING_KEYS = 5
BANS = 1_000_000
STRIKERS = 20_000
STRIKES = 5
HOUR_US = 3_600_000_000


def visits(clients: int, count: int) -> Iterator[Scope]:
    """Return requests of so many clients in turn."""
    return (scope_of(str(ip_address(FIRST_IPV4 + number % clients))) for number in range(count))


async def waiting(scale: float) -> Seen:
    """Let requests of five keys wait, as many of each as may, and as many again come."""
    most = int(WAITING * scale) // WAITING_KEYS
    app = starlette()
    rules = [
        Rule("/shops/{rest:path}", PLENTY, final=True),
        Rule("*", f"{max(most // 20, 1)}/second", wait="20s", wait_max=most),
    ]
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=Limiter(MemoryStore(clock=loop_clock())))
    count = most * WAITING_KEYS * 2
    path = "/shops/mine/400/7"
    return await play(app, starlette(), lambda count: visits(WAITING_KEYS, count), count, held=True, path=path)


async def bans(scale: float) -> Seen:
    """Let a million bans end at once, and clients strike until they are banned."""
    held, strikers = int(BANS * scale), int(STRIKERS * scale)
    clock, later_us = loop_clock(), [0]
    store = MemoryStore(max_bans=held, clock=lambda: clock() + later_us[0])
    before_mib = memory_mib()
    for number in range(held):
        store.bans.ban(f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::/64", HOUR_US, "scene", "scene")
    bans_mib = memory_mib() - before_mib
    app = starlette()
    app.add_middleware(
        RateLimitMiddleware,
        rules=[Rule("/shops/{rest:path}", PLENTY, final=True), Rule("*", "1/hour")],
        limiter=Limiter(store),
        bans=BanPolicy(f"{STRIKES}/10m", max_rate="1000000/1d"),
    )

    def end() -> None:
        later_us[0] = HOUR_US

    count = strikers * (STRIKES + 2)
    path = "/shops/mine/400/7"
    seen = await play(app, starlette(), lambda count: visits(strikers, count), count, begin=end, path=path)
    seen.facts = {"MiB of the bans": bans_mib, "bans held after": store.bans.count()}
    return seen
