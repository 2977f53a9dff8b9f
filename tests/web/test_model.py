"""Middlewares around each other and limits at an endpoint decide, count and tell as the model does, in every worker.

`Model` is the middleware in plain words: which rules count a request, what each window has counted, and what is
reported of it. It knows middlewares around each other, limits at an endpoint, functions of the user's that may fail,
overrides, and workers that share a store. It knows no time but whole days: a window is full until it is over.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from operator import index
from typing import Any, TypeAlias

from fastapi import APIRouter, Depends, FastAPI
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import slidegate
from slidegate import BanPolicy, Limiter, MemoryStore, MessageLimits, Networks, RateLimit, RateLimitExceeded, Rule
from slidegate.testing import FakeClock
from slidegate.web.client_ip import client_ip
from slidegate.web.headers import MOST_NAMED
from slidegate.web.keys import everyone, header

from ..asgi import PEER, Answer, attempt, scope_of
from ..drawing import examples
from ..ops.shared_rows import SharedRows
from .middlewares import METHODS, Listener, Log, answer, check_fields, class_of, fails, fields, page, written

HOUR, DAY = 3_600, 86_400
PATHS = ("/a", "/b", "/c")
HONEYPOT = "/b"
WORKERS = 2
Windows: TypeAlias = dict[int, int]
"""Amounts by the length of their window in seconds."""


def spelled(windows: Windows) -> str:
    made = [f"{amount}/{'hour' if length == HOUR else 'day'}" for length, amount in windows.items()]
    return "; ".join(made) or "unlimited"


# -- functions of the user's -------------------------------------------------------------------------------------------

FALLBACK = {HOUR: 3}
PLANS = {"free": "2/hour", "pro": "4/hour; 6/day", "staff": "unlimited"}
SPELLED: dict[str, Windows] = {spelled(one): one for one in ({HOUR: 2}, {HOUR: 4, DAY: 6}, {}, FALLBACK)}


def tenant(request: Request) -> str | None:
    return request.headers.get("x-tenant")


class Index:
    """A whole number of another kind, as numpy has them."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def cost(request: Request) -> Any:
    """Return a whole number of the kind that a request names."""
    kind, number = request.headers["x-cost"].split()
    return {"int": int, "bool": bool, "index": lambda text: Index(int(text))}[kind](number)


WRONG: dict[str, tuple[Any, ...]] = {
    "limits": (None, "nobody", "5/minut", "0/minute", "5/minute; 0/hour", ["9/day", "0/minute"], 5, [], {"limit": 3}),
    "key": (42, b"k"),
    "cost": ("7", b"7", [7], None, 7.0, 7.5, -1, float("nan"), float("inf"), Decimal(7), Fraction(7)),
}
"""What a function may answer that cannot be used: as if it had failed."""

# -- rules and limits at endpoints -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """A function of the user's as an option: what it does, and how it is written."""

    function: Callable[..., Any]
    how: str
    fails: bool = False

    def option(self) -> Callable[..., Any]:
        return written(self.function, self.how)


@dataclass(frozen=True)
class Limited:
    """A rule, or a limit at an endpoint in one of its forms."""

    name: str
    kind: str = "limit"
    path: str = "*"
    methods: tuple[str, ...] | None = None
    limits: tuple[tuple[int, int], ...] | Given = ((HOUR, 2),)
    key: Given | str | None = None
    cost: Given | None = None
    when: Given | None = None
    count_if: Callable[[int], bool] | None = None
    form: str = "dependency"

    @property
    def windows(self) -> Windows | None:
        """Its amounts; None where a function returns them or it has none."""
        return None if isinstance(self.limits, Given) or self.kind in ("exempt", "block") else dict(self.limits)

    def options(self) -> dict[str, Any]:
        """Return what a user writes."""
        given: dict[str, Any] = {"name": self.name, "methods": self.methods, "when": self.when and self.when.option()}
        if self.kind != "limit":
            given[self.kind] = True
        if self.kind in ("exempt", "block"):
            return given
        given |= {"count_if": self.count_if, "cost": self.cost.option() if self.cost else 1}
        given["key"] = self.key.option() if isinstance(self.key, Given) else KEYS[self.key]
        if isinstance(self.limits, Given):
            return {**given, "limits": self.limits.option(), "fallback_limits": spelled(FALLBACK)}
        return {**given, "limits": spelled(dict(self.limits))}

    def is_about(self, path: str, method: str) -> bool:
        taken = set(map(str.upper, self.methods or METHODS))
        return self.path in (path, "*", "/{rest:path}") and (method in taken or (method == "HEAD" and "GET" in taken))


KEYS = {None: None, "user": header("X-User"), "everyone": everyone}
HOW = st.sampled_from(["plain", "later", "odd"])


def given_or_wrong(what: str, function: Callable[..., Any]) -> st.SearchStrategy[Given]:
    wrong = [fails, *(lambda *given, answer=answer: answer for answer in WRONG.get(what, ()))]
    return st.builds(Given, st.just(function), HOW) | st.builds(Given, st.sampled_from(wrong), HOW, st.just(True))


JUDGES = (lambda status: status == 401, lambda status: status == 500, lambda status: False)
FIXED = st.sampled_from([*(((HOUR, amount),) for amount in (1, 2, 3, 5)), ((HOUR, 3), (DAY, 4))])
LIMITED = st.builds(
    Limited,
    name=st.sampled_from("abcdefgh"),
    kind=st.sampled_from([*["limit"] * 4, "shadow", "shadow", "final", "exempt", "block"]),
    path=st.sampled_from(["*", "*", "*", "/{rest:path}", "/a"]),
    methods=st.sampled_from([None, None, None, ("POST",), ("get", "PUT")]),
    limits=FIXED | FIXED | FIXED | given_or_wrong("limits", lambda request: PLANS[request.headers["x-plan"]]),
    key=st.none() | st.none() | st.sampled_from(["user", "everyone"]) | given_or_wrong("key", tenant),
    cost=st.none() | st.none() | given_or_wrong("cost", cost),
    when=st.none() | st.none() | given_or_wrong("when", lambda request: "x" in request.headers["x-flags"]),
    count_if=st.sampled_from([None, None, *JUDGES, fails]),
    form=st.sampled_from(["dependency", "router", "decorator", "caught"]),
)


@dataclass(frozen=True)
class Layer:
    """A middleware: its rules, and the number of the limiter that it counts with."""

    rules: tuple[Limited, ...]
    limiter: int = 0


def as_rule(one: Limited) -> Limited:
    return replace(one, count_if=None) if one.kind == "shadow" else one


RULES = st.lists(LIMITED.map(as_rule), max_size=3, unique_by=lambda one: one.name).map(tuple)
ENDPOINT_KINDS = {"final": "limit", "exempt": "limit", "block": "shadow"}
AT_ENDPOINT = LIMITED.map(lambda one: as_rule(replace(one, kind=ENDPOINT_KINDS.get(one.kind, one.kind), path="*")))


AFTER_CAUGHT = Limited("after", limits=((HOUR, 1_000_000),), form="caught")
"""What an endpoint asks when it has caught refusals: these stand nowhere any more."""


@dataclass(frozen=True)
class Program:
    """Middlewares, the innermost first, and limits of the endpoint in the order in which they are asked."""

    layers: tuple[Layer, ...]
    endpoint: tuple[Limited, ...] = ()
    endpoint_kind: str = "async"
    """A function, sync or not, or the method of a class, which has decorators alone."""
    beside: bool = False
    """Whether the middlewares have lists and the like too, which no request meets, and a honeypot that only reports."""

    @property
    def limits_in_order(self) -> list[Limited]:
        order = ["router", "dependency", "decorator", "caught"]
        limits = self.endpoint
        if self.endpoint_kind == "class":
            limits = tuple(one if one.form == "caught" else replace(one, form="decorator") for one in limits)
        limits = tuple(sorted(limits, key=lambda one: order.index(one.form)))
        return [*limits, AFTER_CAUGHT] if any(one.form == "caught" for one in limits) else [*limits]


def with_one_meaning_of_names(program: Program) -> Program:
    """Return a program whose limits of one name are the same, as other ones would be an error at the start."""
    first: dict[tuple[str, bool], Any] = {}

    def agreeing(some: tuple[Limited, ...]) -> tuple[Limited, ...]:
        return tuple(
            replace(one, limits=first.setdefault((one.name, one.kind == "shadow"), one.limits)) for one in some
        )

    layers = tuple(replace(layer, rules=agreeing(layer.rules)) for layer in program.layers)
    return replace(program, layers=layers, endpoint=agreeing(program.endpoint))


PROGRAMS = st.builds(
    Program,
    st.lists(st.builds(Layer, RULES, st.sampled_from([0, 0, 1])), min_size=1, max_size=3).map(tuple),
    st.lists(AT_ENDPOINT, max_size=2).map(tuple),
    st.sampled_from(["async", "sync", "class"]),
    st.booleans(),
).map(with_one_meaning_of_names)


REQUESTS = st.fixed_dictionaries(
    {
        "path": st.sampled_from(PATHS),
        "method": st.sampled_from(METHODS),
        "client": st.sampled_from([(PEER, 1), (PEER, 2), ("192.0.2.1", 1)]),
        "headers": st.fixed_dictionaries(
            {
                "x-flags": st.sampled_from(["", "x", "xy", "y"]),
                "x-plan": st.sampled_from(["free", "free", "pro", "pro", "staff"]),
                "x-cost": st.sampled_from(["int 1", "int 1", "int 2", "int 0", "bool 1", "index 2"]),
                "x-status": st.sampled_from(["200", "200", "401", "401", "raises"]),
            },
            optional={"x-tenant": st.sampled_from(["", "a", "b"]), "x-user": st.sampled_from(["ann", "bob"])},
        ),
    }
)
"""The fields of scopes: what functions of the user's read in them, and the status, or that the endpoint raises."""

# -- what becomes of a request -----------------------------------------------------------------------------------------

Window: TypeAlias = tuple[int, str, bool, str]
"""The number of a limiter, a name, whether it only reports, and a key."""


@dataclass
class Check:
    rule: Limited
    window: Window
    units: int
    windows: Windows
    left: Windows = field(default_factory=dict)
    """What its windows had left when it was charged."""

    @property
    def limit(self) -> object:
        """The same limits of a key are one, and are charged once."""
        return self.window, *self.windows.items()


@dataclass
class Passed:
    """What a middleware and the limits within have let a request pass so far."""

    charged: dict[object, int] = field(default_factory=dict)
    reported: dict[object, int] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)


@dataclass
class Expected:
    """What becomes of a request, and what observers get and the log says of it."""

    status: int = 0
    refused_by: set[str] = field(default_factory=set)
    """The names of those rules of which one may be shown as what refuses: all with the longest wait."""
    retry_after_s: int | None = None
    policies: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Name, amount, window and what is left, of each middleware, the innermost first."""
    events: list[tuple[str, str, str]] = field(default_factory=list)
    limiters: set[int] = field(default_factory=set)
    """Those whose observers get its outcome, once: of each middleware that it has come to."""
    exempt: dict[int, int] = field(default_factory=dict)
    """Those of them whose outermost middleware exempts it, with its depth: they get it if it is counted anyway."""
    failed: set[tuple[object, ...]] = field(default_factory=set)


class Refused(Exception):
    """The names of the rules of which one refuses, the status, and of limits what is exceeded, and the longest wait."""


class Model:
    """Counts as the stack of middlewares of each worker does."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.spent: Counter[tuple[Window, int]] = Counter()
        self.changed: dict[tuple[int, str], int] = {}
        self.exceeded: set[object] = set()
        self.trapped: set[object] = set()
        self.worker = 0

    # -- operators and time --------------------------------------------------------------------------------------------

    def changeable(self) -> list[tuple[int, str]]:
        """Return the limiters and names of limits that can take another amount an hour."""
        layers = self.program.layers
        named = [(layer.limiter, one, one.windows) for layer in layers for one in layer.rules]
        named += [(layers[0].limiter, one, None) for one in self.program.endpoint]  # they are known when they are met
        fit, others = set[tuple[int, str]](), set[tuple[int, str]]()
        for number, one, windows in named:
            if one.kind not in ("exempt", "block"):
                (fit if [*(windows or ())] == [HOUR] else others).add((number, one.name))
        return sorted(fit - others)

    def days_pass(self) -> None:
        self.spent.clear()
        self.exceeded.clear()
        self.trapped.clear()
        self.changed.clear()

    # -- one request ---------------------------------------------------------------------------------------------------

    def decide(self, request: Request, key_of: Callable[[str], str]) -> Expected:
        self.expected, self.key_of = Expected(), key_of
        written = request.headers["x-status"]
        status = 500 if written == "raises" else int(written)
        passed = [Passed() for _ in self.program.layers]
        try:
            for depth in reversed(range(len(self.program.layers))):
                self._enter(depth, request, passed[depth])
            for one in self.program.limits_in_order:
                if one.is_about(request.url.path, request.method) and self._holds(0, one, request) is not False:
                    self._ask_at_endpoint(one, request, passed[0])
        except Refused as refused:
            self.expected.refused_by, status, beyond, self.expected.retry_after_s = refused.args
            self._exceed(beyond)
        for limiter, outermost in self.expected.exempt.items():
            observed = any(within.reported for within in passed[: outermost + 1])
            if not observed and not self.expected.refused_by and not any(within.checks for within in passed):
                self.expected.limiters.remove(limiter)
        for depth, within in enumerate(passed):
            self._settle(depth, within, status)
        self.expected.status = status
        return self.expected

    def _enter(self, depth: int, request: Request, passed: Passed) -> None:
        limiter, (counting, ends) = self.program.layers[depth].limiter, self._counting(depth, request)
        if ends == "exempt" and limiter not in self.expected.limiters:
            self.expected.exempt[limiter] = depth
        self.expected.limiters.add(limiter)
        if self.program.beside and ends != "exempt" and request.url.path == HONEYPOT:
            # The honeypot would ban the client; the store tells that once, to the limiters of all workers.
            trapped = self.program.layers[depth].limiter, request.scope["client"][0]
            self.expected.events += [("shadow_banned", "trap", trapped[1])] * WORKERS * (trapped not in self.trapped)
            self.trapped.add(trapped)
        if ends == "block":
            raise Refused({counting.pop().name}, 403, (), None)
        self._ask(depth, [one for one in counting if one.kind != "shadow"], request, passed)
        for one in counting:
            if one.kind == "shadow":
                self._report(depth, one, request, passed)

    def _counting(self, depth: int, request: Request) -> tuple[list[Limited], str]:
        """Return the rules that count a request, the blocking one last, and the kind of that which ends the list."""
        found: list[Limited] = []
        for one in self.program.layers[depth].rules:
            if not one.is_about(request.url.path, request.method):
                continue
            holds = self._holds(depth, one, request)
            if holds is False or (holds is None and one.kind == "exempt"):
                continue
            if one.kind != "exempt":
                found.append(one)
            if one.kind in ("exempt", "block") or (one.kind == "final" and holds):
                return found, one.kind
        return found, ""

    def _holds(self, depth: int, one: Limited, request: Request) -> bool | None:
        """Return whether its condition holds; None where its function fails."""
        return self._said(depth, "when", one, request, None) if one.when else True

    def _said(self, depth: int, what: str, one: Limited, request: Request, otherwise: Any) -> Any:
        """Return what a function of the user's says."""
        given: Given = getattr(one, what)
        if given.fails:
            self.expected.failed.add((self.worker, depth, what, one.name))
            return otherwise
        return given.function(request)

    def _check(self, depth: int, one: Limited, request: Request) -> Check | None:
        """Return what is asked under a rule; None where it does not count the request."""
        limiter = self.program.layers[depth].limiter
        windows = one.windows or {}
        if isinstance(one.limits, Given):
            windows = SPELLED[self._said(depth, "limits", one, request, spelled(FALLBACK))]
        elif (limiter, one.name) in self.changed:
            windows = {HOUR: self.changed[limiter, one.name]}
        key: str | None = ""  # or None: the client's address
        if isinstance(one.key, str):
            name = request.headers.get("x-user")
            key = one.key if one.key == "everyone" else self.key_of(name) if name else ""
        elif one.key is not None:
            key = self._said(depth, "key", one, request, "")
        if not windows:  # the key is read where nothing is counted, too: bans of it hold
            return None
        spent = index(self._said(depth, "cost", one, request, 1)) if one.cost else 1
        assert request.client
        spent = min([spent, *windows.values()])
        window = limiter, one.name, one.kind == "shadow", key or request.client.host
        return Check(one, window, spent, windows)

    def _left(self, check: Check | None, charged: dict[object, int]) -> Check | None:
        """Return what of a check is not charged yet: the same limits of a key count once, with the larger cost."""
        if check is None:
            return None
        before = charged.get(check.limit)
        if before is None or before < check.units:
            return replace(check, units=check.units - (before or 0))
        return None

    def _full(self, check: Check) -> int:
        """Return the longest of its windows in which it finds no room; 0 if there is none."""
        return max(self._full_windows(check), default=0)

    def _full_windows(self, check: Check) -> list[int]:
        """Return the windows in which a check finds no room."""
        least = max(check.units, 1)  # a cost of 0 passes while less than the amount is spent
        return [one for one, amount in check.windows.items() if self.spent[check.window, one] + least > amount]

    def _ask(self, depth: int, limited: list[Limited], request: Request, passed: Passed) -> None:
        """Charge all or none."""
        spent = [self._left(self._check(depth, one, request), passed.charged) for one in limited]
        checks = [check for check in spent if check is not None]
        beyond = [check for check in checks if self._full(check)]
        if beyond:
            longest = max(map(self._full, beyond))
            raise Refused({one.rule.name for one in beyond if self._full(one) == longest}, 429, beyond, longest)
        for check in checks:
            self._charge(check, passed.charged)
        passed.checks += checks

    def _ask_at_endpoint(self, one: Limited, request: Request, passed: Passed) -> None:
        if one.kind == "shadow":
            self._report(0, one, request, passed)
            return
        with suppress(*[Refused] * (one.form == "caught")):
            self._ask(0, [one], request, passed)

    def _charge(self, check: Check, charged: dict[object, int]) -> None:
        charged[check.limit] = charged.get(check.limit, 0) + check.units
        for length, amount in check.windows.items():
            self.spent[check.window, length] += check.units
            check.left[length] = amount - self.spent[check.window, length]

    def _report(self, depth: int, one: Limited, request: Request, passed: Passed) -> None:
        check = self._left(self._check(depth, one, request), passed.reported)
        if check is None:
            return
        if not self._full(check):
            self._charge(check, passed.reported)
            return
        passed.reported[check.limit] = passed.reported.get(check.limit, 0) + check.units
        self.expected.events.append(("shadow_refused", one.name, check.window[3]))
        self._exceed((check,))

    def _exceed(self, checks: Sequence[Check]) -> None:
        for check in checks:
            for length in self._full_windows(check):
                known = self.worker, check.window, length
                if known not in self.exceeded:
                    self.exceeded.add(known)
                    self.expected.events.append(("exceeded", check.rule.name, check.window[3]))

    def _settle(self, depth: int, passed: Passed, status: int) -> None:
        for check in passed.checks:
            judge = check.rule.count_if
            if judge is fails:
                self.expected.failed.add((self.worker, depth, "count_if", check.rule.name))
            elif judge is not None and not judge(status):
                for length in check.windows:
                    self.spent[check.window, length] -= check.units
                    check.left[length] += check.units
        latest = {check.limit: check for check in passed.checks}
        for check in latest.values():  # the same limits of a key are shown once
            for length, amount in check.windows.items():
                name = check.rule.name + (f"_{length}" if len(check.windows) > 1 else "")
                self.expected.policies.append((name, amount, length, check.left[length]))


# -- the middleware beside it ------------------------------------------------------------------------------------------


def catching(limits: Sequence[RateLimit], endpoint: Callable[[Request], Awaitable[Response]]) -> Any:
    """Return an endpoint that asks limits first, and goes on when they refuse."""

    async def caught(request: Request) -> Response:
        for limit in limits:
            with suppress(RateLimitExceeded):
                await limit.check(request)
        return await endpoint(request)

    return caught


def endpoint_of(program: Program) -> ASGIApp:
    """Return an application whose endpoint has the limits of a program, each in its form."""
    limits = [(one.form, RateLimit(**one.options())) for one in program.limits_in_order]
    caught = [limit for form, limit in limits if form == "caught"]

    def of(form: str) -> list[Any]:
        return [Depends(limit) for at, limit in limits if at == form]

    endpoint: Any = answer if program.endpoint_kind == "sync" and not caught else page
    if caught:
        endpoint = catching(caught, endpoint)
    for form, limit in reversed(limits):
        endpoint = limit(endpoint) if form == "decorator" else endpoint
    app, router = FastAPI(), APIRouter(dependencies=of("router"))
    for path in PATHS:
        if program.endpoint_kind == "class":
            app.router.routes.append(Route(path, class_of(endpoint)))
        else:
            router.api_route(path, methods=[*METHODS], dependencies=of("dependency"))(endpoint)
    app.include_router(router)
    return app


NOBODY = Networks(["192.0.2.77"])
BESIDE: dict[str, Any] = {
    "allowlist": NOBODY,
    "blocklist": NOBODY,
    "bans": BanPolicy(name="trap", shadow=True, signals={HONEYPOT: "ban"}),
    "client": client_ip(trusted=["10.0.0.0/8"]),
    "messages": MessageLimits("1000/second"),
}
"""What a middleware may have beside its rules: what no request meets, and a honeypot."""


class Middleware(RuleBasedStateMachine):
    """Two workers with the same middlewares, and the model of them."""

    @initialize(program=PROGRAMS)
    def start(self, program: Program) -> None:
        self.model, self.listener, self.log = Model(program), Listener(), Log()
        self.failed: set[tuple[object, ...]] = set()
        logging.getLogger("slidegate").addHandler(self.log)
        self.program, self.runner = program, asyncio.Runner()
        self.clock = FakeClock(1_800_000_000_000_000)
        stores = [MemoryStore(clock=self.clock) for _ in range(2)]
        for store in stores:
            store.shared_rows = SharedRows(self.clock)
        self.workers = [[Limiter(store, observers=[self.listener]) for store in stores] for _ in range(WORKERS)]
        self.apps = [self.stack(program, limiters) for limiters in self.workers]

    def stack(self, program: Program, limiters: list[Limiter]) -> ASGIApp:
        app = endpoint_of(program)
        for number, layer in enumerate(program.layers):
            rules = [Rule(one.path, **one.options()) for one in layer.rules]
            more = {**BESIDE} if program.beside else {}
            if layer.limiter in [other.limiter for other in program.layers[:number]]:  # they have no name
                more.pop("messages", None)
            app = slidegate.RateLimitMiddleware(app, rules=rules, limiter=limiters[layer.limiter], **more)
        return app

    @rule(worker=st.integers(0, WORKERS - 1), requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def requests(self, worker: int, requests: list[dict[str, Any]]) -> None:
        self.model.worker, key_of = worker, self.workers[worker][0].key_for
        for sent in requests:
            self.listener.events.clear()
            self.listener.outcomes.clear()
            foreseen = self.model.decide(Request(scope_of(**sent)), lambda name: key_of(header("X-User").of(name)))
            self.failed |= foreseen.failed
            found, error = self.runner.run(attempt(self.apps[worker], **sent))
            assert found.status == foreseen.status
            assert (error is None) is (foreseen.status != 500)
            self.check_fields(found, foreseen)
            self.check_events(foreseen)

    def check_fields(self, found: Answer, foreseen: Expected) -> None:
        if foreseen.status in (403, 429):
            assert found.headers.get("retry-after") == (foreseen.retry_after_s and str(foreseen.retry_after_s))
            return
        check_fields(found)
        policy, left = (fields(found.headers.get(name, "")) for name in ("ratelimit-policy", "ratelimit"))
        shown = [(name, one["q"], one["w"], rest["r"]) for (name, one), (_, rest) in zip(policy, left, strict=True)]
        assert len({name for name, *_ in shown}) == len(shown)
        # The second and the third limit of a name have a number, of whichever middleware they are.
        named = Counter((re.sub(r"_[2-9]$", "", name), *rest) for name, *rest in shown)
        expected = Counter(foreseen.policies)
        assert named <= expected
        assert named == expected or named.total() >= MOST_NAMED, "a middleware names the tightest of many limits"

    def check_events(self, foreseen: Expected) -> None:
        events = [(event.kind, event.details) for event in self.listener.events]
        emitted = [(kind, details.get("rule", details.get("policy")), details["key"]) for kind, details in events]
        assert [one for one in emitted if one[0] != "refused"] == foreseen.events
        refused = [name for kind, name, _ in emitted if kind == "refused"]
        assert len(refused) == bool(foreseen.refused_by)
        assert {*refused} <= foreseen.refused_by
        outcomes = [(one.status, one.allowed) for one in self.listener.outcomes]
        assert outcomes == [(foreseen.status, not refused)] * len(foreseen.limiters)

    @precondition(lambda self: self.model.changeable())
    @rule(data=st.data(), amount=st.sampled_from([1, 2, 4, 7]))
    def operator_changes_a_limit(self, data: st.DataObject, amount: int) -> None:
        limiter, name = data.draw(st.sampled_from(self.model.changeable()))
        self.runner.run(self.workers[0][limiter].override(name, f"{amount}/hour", "1d"))
        self.model.changed[limiter, name] = amount
        self.look()

    @precondition(lambda self: self.model.changed)
    @rule(data=st.data())
    def operator_restores_a_limit(self, data: st.DataObject) -> None:
        limiter, name = data.draw(st.sampled_from(sorted(self.model.changed)))
        assert self.runner.run(self.workers[1][limiter].restore(name))
        del self.model.changed[limiter, name]
        self.look()

    @precondition(lambda self: self.model.exceeded)
    @rule()
    def days_pass(self) -> None:
        self.clock.advance("3d")
        self.look()
        self.model.days_pass()

    def look(self) -> None:
        """Have every worker look at what operators have changed, as its timer does twice a second."""
        for limiters in self.workers:
            for limiter in limiters:
                self.runner.run(limiter.engine.refresher.refresh())

    def teardown(self) -> None:
        logging.getLogger("slidegate").removeHandler(self.log)
        expected = Counter((what, name) for _, _, what, name in self.failed)
        self.runner.close()
        found = re.findall(r"(\w+) function of '(\w+)' failed", "\n".join(self.log.lines))
        assert Counter(found) == expected, "once for each function of each middleware"


def test_the_middleware_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        Middleware,
        settings=settings(
            max_examples=examples(100), stateful_step_count=20, deadline=None, report_multiple_bugs=False
        ),
    )
