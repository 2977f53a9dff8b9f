"""Findings about processes and about a middleware that is built for each route.

tests/web/scenarios/findings.txt has examples of each message.
"""

from typing import Any

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule

from ..asgi import call, hello


def codes(found: RateLimitMiddleware) -> list[str]:
    return [finding.code for finding in found.findings]


# -- a middleware that is built for each route -------------------------------------------------------------------------


@pytest.mark.parametrize("limiter", [None, Limiter()])
@pytest.mark.parametrize("of_rule", [{}, {"name": "api"}])
@pytest.mark.parametrize("more", [{}, {"default_limits": "9/minute"}, {"name": "site"}])
async def test_the_third_middleware_of_the_same_options_that_counts_apart_is_found(
    limiter: Limiter | None, of_rule: dict[str, Any], more: dict[str, Any]
) -> None:
    rules = [Rule("*", "9/minute", **of_rule)]
    if limiter is not None:
        await limiter.reset_all()
    built = [RateLimitMiddleware(hello, rules=rules, limiter=limiter, **more) for _ in range(4)]
    for one in built:
        fields = (await call(one)).headers["ratelimit"]
    assert ["SG131" in codes(one) for one in built] == [False, False, "r=8" in fields, False]
    again = [RateLimitMiddleware(hello, rules=list(rules), limiter=limiter, **more) for _ in range(3)]
    assert "SG131" not in codes(again[2])
