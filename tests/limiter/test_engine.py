"""Those who ask a limiter are listed."""

from __future__ import annotations

import gc

from slidegate import Limiter, RateLimitMiddleware, Rule

from ..asgi import hello


async def test_callers_are_listed_in_their_order_as_long_as_they_live() -> None:
    limiter = Limiter()
    first = RateLimitMiddleware(hello, limits="1/s", limiter=limiter)
    second = RateLimitMiddleware(first, rules=[Rule("/a", "1/s", name="a")], limiter=limiter)
    RateLimitMiddleware(hello, limits="1/s")  # on a limiter of its own
    limited = limiter.limited("2/s", key="b", rule="function")(hello)
    assert limiter.engine.callers.listed()[:2] == [first, second]
    assert [bucket.rule for bucket in limiter.engine.callers.listed()[2].buckets()] == ["function"]
    assert [bound.rule.label for bound in second.bound()] == ["a"]
    del first, second, limited
    gc.collect()
    assert limiter.engine.callers.listed() == []
