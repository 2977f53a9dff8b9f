"""Which requests a rule is about, and which limits: plans, quotas, and limits that nobody passes."""

from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

from slidegate import ConfigurationError, Limiter, Quota, RateLimitMiddleware, Rule, everyone, header
from slidegate.web.callbacks import whole_cost

from ..asgi import call, hello
from ..test_wrong_arguments import WRONG
from .limited import limited


def test_a_rule_without_a_name_counts_by_its_methods_and_its_paths_in_any_order() -> None:
    assert Rule("*", "5/minute").identity == "default"
    assert Rule("/a", "5/minute").identity == Rule("/a", "9/minute", key=everyone).identity == "/a"
    assert Rule("/a", "5/minute", methods=["POST"]).identity == "POST /a"
    assert Rule("/a", "5/minute", name="a").identity == "a"
    assert Rule(["/a"], "5/minute").identity == "/a"
    paths = ["/login", "/api/login", "/v2/{rest:path}"]
    (identity,) = {Rule(order, "1/minute").identity for order in permutations(paths)}
    assert (
        len({identity, *(Rule(some, "1/minute").identity for some in (paths[:2], paths[0], " ".join(paths[:2])))}) == 4
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["*", "/a"]), st.sampled_from([None, ("GET",)]), st.sampled_from([None, "/a", "b"])),
        max_size=4,
    )
)
def test_two_limits_of_one_middleware_never_share_a_bucket(written: list[tuple[str, Any, str | None]]) -> None:
    rules = [
        Rule(path, f"{amount}/minute", methods=methods, name=name)
        for amount, (path, methods, name) in enumerate(written, start=1)
    ]
    is_apart = len({rule.identity for rule in rules}) == len(rules)
    try:
        RateLimitMiddleware(hello, rules=[*rules, Rule("/a", exempt=True), Rule("/a", block=True)])
    except ConfigurationError as error:
        assert "would share one bucket" in str(error)  # noqa: PT017 - whether it raises depends on the rules
        assert not is_apart
    else:
        assert is_apart


@pytest.mark.parametrize("read", ["limits", "cost"])
def test_what_a_function_returns_is_taken_or_refused_with_what_was_expected(read: str) -> None:
    rule = Rule("*", lambda request: "5/minute", fallback_limits="5/minute")
    (bound,) = RateLimitMiddleware(hello, rules=[rule]).rule_set.bound()
    for returned in WRONG:
        with suppress(ConfigurationError):  # and nothing else, of which the log would have a traceback
            bound.with_limits(returned) if read == "limits" else whole_cost(returned)


CUSTOMER = header("X-API-Key")
PLANS: dict[str, Any] = {"k-ann": "5/minute", "k-eve": ["3/minute", Quota("100/month")]}
SHOWN = {"k-ann": ["5/1m"], "k-eve": ["3/1m", "100/month"]}


@pytest.mark.parametrize("at", ["rule", "decorator"])
async def test_a_customer_is_shown_the_fall_back_of_its_plan_and_the_plan_that_is_passed(at: str) -> None:
    def plan(request: HTTPConnection) -> Any:
        return PLANS[request.headers["X-API-Key"]]

    limiter = Limiter()
    app = limited(at, plan, limiter=limiter, key=CUSTOMER, fallback_limits="2/minute", name="plan")
    for customer in PLANS:
        await call(app, headers={"X-API-Key": customer})
        for plans, shown in ((None, ["2/1m"]), ({"plan": PLANS[customer]}, SHOWN[customer])):
            windows = (await limiter.inspect(CUSTOMER.of(customer), plans)).windows
            assert [str(window.limit).partition(" from ")[0] for window in windows] == shown
        assert [window.used for window in windows] == [1] * len(shown)
