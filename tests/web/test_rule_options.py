"""Rules with random options and functions of the user's decide, count and tell as a small model does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, scope_of, send_scope
from .limited import AT, METHODS, answer, limited

Asked = Callable[[Request], Any]
HOUR, DAY = 3_600, 86_400
PLANS: dict[str, tuple[str, dict[int, int]]] = {
    "free": ("2/hour", {HOUR: 2}),
    "pro": ("4/hour; 6/day", {HOUR: 4, DAY: 6}),
    "staff": ("unlimited", {}),
}
FALLBACK = {HOUR: 3}


class Odd:
    """A function that equals everything and cannot be hashed, as an instance of a data class may."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def written(function: Callable[..., Any], dice: Random, *wrong: object) -> Callable[..., Any]:
    """Return a function as some user might write it; one that is to fail raises, or answers something wrong."""

    def plain(*given: Any) -> Any:
        return function(*given)

    async def later(*given: Any) -> Any:
        return function(*given)

    if function is fails and wrong and dice.random() < 0.5:
        answered = dice.choice(wrong)
        function = Odd(lambda *given: answered)
    kinds: list[Callable[..., Any]] = [plain, later, Odd(function)]
    return dice.choice(kinds)


def fails(*given: Any) -> Any:
    raise LookupError("no such country")


def flagged(request: Request) -> bool:
    return "x" in request.headers["x-flags"]


def tenant(request: Request) -> str | None:
    return request.headers.get("x-tenant")


def cost(request: Request) -> int:
    return int(request.headers["x-cost"])


def plan(request: Request) -> str:
    return PLANS[request.headers["x-plan"]][0]


def windows_of_plan(request: Request) -> dict[int, int]:
    return PLANS[request.headers["x-plan"]][1]


def is_wrong(status: int) -> bool:
    return status == 401


@dataclass
class Known:
    """A rule as the model knows it, with the units of each key and window, and the keys that were told."""

    name: str
    kind: str
    path: str = "*"
    methods: Sequence[str] | None = None
    when: Asked | None = None
    limits: dict[int, int] | Asked = field(default_factory=dict)
    key: Asked | None = None
    cost: Asked | None = None
    count_if: Callable[..., bool] | None = None
    spent: Counter[tuple[str, int]] = field(default_factory=Counter)

    def is_about(self, path: str, method: str) -> bool:
        """Tell whether it is about requests with a path and a method."""
        taken = {name.upper() for name in self.methods or METHODS}
        taken |= {"HEAD"} if "GET" in taken else set()
        return self.path in (path, "*", "/{rest:path}") and method in taken


@dataclass
class Check:
    rule: Known
    key: str
    units: int
    windows: dict[int, int]

    @property
    def fits(self) -> bool:
        return all(
            (spent := self.rule.spent[self.key, window]) < amount and spent + self.units <= amount
            for window, amount in self.windows.items()
        )

    def charge(self) -> None:
        for window in self.windows:
            self.rule.spent[self.key, window] += self.units

    @property
    def policy(self) -> set[str]:
        windows = self.windows
        suffix = len(windows) > 1
        return {f'"{self.rule.name}{f"_{one}" * suffix}";q={amount};w={one}' for one, amount in windows.items()}


class Model:
    """Goes from rule to rule, and notes which functions fail and what rules that only look on would refuse."""

    def __init__(self, rules: list[Known]) -> None:
        self.rules = rules
        self.failed: set[tuple[str, str]] = set()
        self.seen: list[tuple[str, str]] = []
        self.exceeded: list[tuple[str, str]] = []

    def asked(self, what: str, rule: Known, function: Any, given: tuple[Any, ...], otherwise: Any) -> Any:
        if function is fails:
            self.failed.add((what, rule.name))
            return otherwise
        return function(*given)

    def check(self, rule: Known, request: Request) -> Check | None:
        """Return what is asked under a rule; None where it does not count the request."""
        windows: Any = rule.limits
        if callable(windows):
            windows = self.asked("limits", rule, windows, (request,), FALLBACK)
        if windows == {}:
            return None
        key = self.asked("key", rule, rule.key, (request,), "") if rule.key else ""
        if key is None:
            return None
        units = self.asked("cost", rule, rule.cost, (request,), 1) if rule.cost else 1
        return Check(rule, key or PEER, units, windows)

    def counting(self, request: Request) -> list[Known] | None:
        """Return the rules that count a request; None where one blocks it."""
        found: list[Known] = []
        for rule in self.rules:
            if not rule.is_about(request.url.path, request.method):
                continue
            holds = self.asked("when", rule, rule.when, (request,), None) if rule.when else True
            if holds is False or (holds is None and rule.kind == "exempt"):
                continue
            if rule.kind in ("block", "exempt"):
                return None if rule.kind == "block" else found
            found.append(rule)
            if rule.kind == "final" and holds:
                break
        return found

    def decide(self, request: Request) -> tuple[int, set[str]]:
        """Return the status of the answer, and the limits that its fields tell."""
        counting = self.counting(request)
        if counting is None:
            return 403, set()
        asked = [self.check(rule, request) for rule in counting if rule.kind != "shadow"]
        checks = [check for check in asked if check is not None]
        beyond = [check for check in checks if not check.fits]
        if beyond:
            self.exceed(beyond if all(check.windows is not None for check in beyond) else [])
            return 429, set()
        for rule in counting:
            if rule.kind == "shadow" and (check := self.check(rule, request)):
                self.look(check)
        response = answer(request)
        for check in checks:
            given = (response.status_code,)
            if not check.rule.count_if or self.asked("count_if", check.rule, check.rule.count_if, given, True):
                check.charge()
        return response.status_code, {item for check in checks for item in check.policy}

    def look(self, check: Check) -> None:
        if check.fits:
            check.charge()
        else:
            self.seen.append((check.rule.name, check.key))
            self.exceed([check])

    def exceed(self, checks: list[Check]) -> None:
        for check in checks:
            if check.windows and (check.rule.name, check.key) not in self.exceeded:
                self.exceeded.append((check.rule.name, check.key))


def drawn(dice: Random, number: int, kind: str) -> tuple[Known, dict[str, Any]]:
    """Return a rule: what the model knows of it, and its options."""
    known = Known(f"r{number}", kind, methods=dice.choice([None, None, ["POST"], ["get", "PUT"]]))
    options: dict[str, Any] = {"methods": known.methods, "name": known.name}
    if known_when := dice.choice([None, None, flagged, fails]):
        known.when, options["when"] = known_when, written(known_when, dice)
    if kind in ("exempt", "block"):
        return known, {**options, kind: True}
    options |= {"final": True} if kind == "final" else {"shadow": True} if kind == "shadow" else {}
    amount = dice.choice([2, 3, 5])
    known.limits, options["limits"] = {HOUR: amount}, f"{amount}/hour"
    if dice.random() < 0.5:
        known.limits, function = dice.choice([(windows_of_plan, plan), (windows_of_plan, plan), (fails, fails)])
        options |= {"limits": written(function, dice, None, "5/minut", 5, []), "fallback_limits": "3/hour"}
    if known_key := dice.choice([None, tenant, fails]):
        known.key, options["key"] = known_key, written(known_key, dice, 42, b"k")
    if known_cost := dice.choice([None, cost, fails]):
        known.cost, options["cost"] = known_cost, written(known_cost, dice, "7", None, True, 7.5, -1)
    if kind != "shadow" and (count_if := dice.choice([None, is_wrong, fails])):
        known.count_if = options["count_if"] = count_if
    return known, options


async def site(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(Request(scope))(scope, receive, send)


def request_of(dice: Random, path: str) -> Scope:
    headers = {
        "x-flags": dice.choice(["", "x", "xy", "y"]),
        "x-plan": dice.choice(["free", "free", "pro", "pro", "staff"]),
        "x-cost": dice.choice("0112"),
        "x-status": dice.choice(["200", "401"]),
        "x-hit": dice.choice(["hit", "miss"]),
    }
    headers |= dice.choice([{}, {"x-tenant": ""}, {"x-tenant": "a"}, {"x-tenant": "b"}])
    return scope_of(path, dice.choice(METHODS), headers=headers)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("at", ["rules", *AT])
async def test_random_options_do_what_a_walk_over_the_rules_says(
    at: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    dice = Random(f"{at} {seed}")
    heard, clock = RecordingObserver(without=["refused"]), FakeClock()
    limiter = Limiter(MemoryStore(clock=clock), observers=[heard])
    kinds = ["limit", "shadow"] if at != "rules" else ["limit", "limit", "final", "shadow", "exempt", "block"]
    made = [drawn(dice, number, dice.choice(kinds)) for number in range(dice.randint(2, 6) if at == "rules" else 1)]
    model = Model([known for known, _ in made])
    if at == "rules":
        for known, options in made:
            options["path"] = known.path = dice.choice(["/a", "/b", "/{rest:path}", "*"])
        app = RateLimitMiddleware(site, rules=[Rule(**options) for _, options in made], limiter=limiter)
    else:
        app = limited(at, limiter=limiter, **made[0][1])
    for turn in range(40):
        scope = request_of(dice, dice.choice(["/a", "/b", "/c"]) if at == "rules" else "/")
        status, policy = model.decide(Request(scope))
        found = await send_scope(app, scope)
        where = f"request {turn}, {scope['method']} {scope['headers']}, {made}"
        assert found.status == status, where
        if status not in (403, 429):
            assert set(filter(None, found.headers.get("ratelimit-policy", "").split(", "))) == policy, where
    for kind, expected in (("shadow_refused", model.seen), ("exceeded", model.exceeded)):
        events = [event.details for event in heard.events if event.kind == kind]
        assert [(details["rule"], details["key"]) for details in events] == expected
    assert set(heard.kinds) <= {"shadow_refused", "exceeded"}
    logged = [re.search(r"(\w+) function of rule '(\w+)' failed", record.getMessage()) for record in caplog.records]
    assert sorted(line.groups() for line in logged if line) == sorted(model.failed), "once for each function"
