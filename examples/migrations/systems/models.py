"""Models of limiters that do not run in Python: only their published algorithms, in a few lines each.

| model | source |
| --- | --- |
| `LimitReq` | nginx, `src/http/modules/ngx_http_limit_req_module.c`, `ngx_http_limit_req_lookup` |
| `FromFirstHit` | express-rate-limit 8.6.2, `source/memory-store.ts`, and `getResetSeconds` of `source/headers.ts` |
| `ByTheClock` | rack-attack 6.8.0, `lib/rack/attack/cache.rb`, and the throttled responder of `configuration.rb` |
| `LeapArray` | Sentinel, `slots/statistic/base/LeapArray.java`, `DefaultController.java`; two samples, its default |
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Any

from slidegate.testing import FakeClock

from ..asking import CLIENT, Answer
from ..attacks import Make


class LimitReq:
    """A leaky bucket: each request adds one, it drains at a constant rate, and requests beyond `burst` are refused.

    Args:
        clock: The clock.
        amount: The number of requests that drain in a window.
        window_s: The window in seconds.
        burst: The capacity; requests below it pass immediately (`nodelay`).
    """

    def __init__(self, clock: FakeClock, amount: int, window_s: int, burst: int) -> None:
        self.clock, self.rate, self.burst = clock, amount * 1_000 // window_s, burst * 1_000
        self.excess: int | None = None
        self.last_ms = 0

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now; it is counted in thousandths, as in nginx."""
        now_ms = self.clock.now_us // 1_000
        drained = self.rate * (now_ms - self.last_ms) // 1_000
        excess = 0 if self.excess is None else max(0, self.excess - drained + 1_000)
        if excess > self.burst:
            return Answer(503)
        self.excess, self.last_ms = excess, now_ms
        return Answer(200)


class FromFirstHit:
    """A fixed window that begins with a client's first request and counts refused requests too."""

    def __init__(self, clock: FakeClock, amount: int, window_s: int) -> None:
        self.clock, self.amount, self.window_us = clock, amount, window_s * 1_000_000
        self.reset_us, self.hits = 0, 0

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""
        now_us = self.clock.now_us
        if self.reset_us <= now_us:
            self.reset_us, self.hits = now_us + self.window_us, 0
        self.hits += 1
        if self.hits > self.amount:
            return Answer(429, ceil((self.reset_us - now_us) / 1_000_000))
        return Answer(200)


class ByTheClock:
    """A fixed window that begins at multiples of its length for all clients, and counts refused requests too.

    Its `Retry-After` is sent if `throttled_response_retry_after_header` is enabled.
    """

    def __init__(self, clock: FakeClock, amount: int, window_s: int) -> None:
        self.clock, self.amount, self.window_s = clock, amount, window_s
        self.counted, self.hits = -1, 0

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""
        now_s = self.clock.now_us // 1_000_000
        if now_s // self.window_s != self.counted:
            self.counted, self.hits = now_s // self.window_s, 0
        self.hits += 1
        if self.hits > self.amount:
            return Answer(429, self.window_s - now_s % self.window_s)
        return Answer(200)


class LeapArray:
    """A window of `samples` buckets, including the current one; a bucket is cleared before it is reused."""

    def __init__(self, clock: FakeClock, amount: int, window_s: int, samples: int = 2) -> None:
        self.clock, self.amount, self.samples = clock, amount, samples
        self.bucket_us = window_s * 1_000_000 // samples
        self.passed: dict[int, int] = {}

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""
        running = self.clock.now_us // self.bucket_us
        self.passed = {number: units for number, units in self.passed.items() if number > running - self.samples}
        if sum(self.passed.values()) + 1 > self.amount:
            return Answer(429)
        self.passed[running] = self.passed.get(running, 0) + 1
        return Answer(200)


class Each:
    """Several limiters in sequence, until one refuses."""

    def __init__(self, clock: FakeClock, kinds: tuple[Any, ...]) -> None:
        self.limiters = [kind(clock) for kind in kinds]

    def ask(self, path: str = "/", client: str = CLIENT, headers: dict[str, str] | None = None) -> Answer:
        """Send one request now."""
        answers = (limiter.ask(path, client) for limiter in self.limiters)
        return next((answer for answer in answers if not answer.passed), Answer(200))


def made(kind: Any, **options: Any) -> Make:
    """Return a function that creates a model."""
    return partial(kind, **options)


def each(*kinds: Any) -> Make:
    """Return a function that creates several models in sequence."""
    return partial(Each, kinds=kinds)
