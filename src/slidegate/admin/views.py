"""The output of the admin API and the command, as models: bans, clients, rules, stats.

A view reads its fields from an object of the library: ``Ban.model_validate(ban)``. A validation alias names the
attribute if it differs, and a validator converts the unit. A view built from several objects has a method ``of``.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds, `_ms` milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import AliasPath, BeforeValidator, Field

from ..core.bans.ban import MAX_REASON
from ..core.decision import Decision, LimitSet
from ..core.logs import escaped
from ..core.views import WindowSlice
from ..core.windows.histogram import ResponseTimes
from ..limiter import Limiter
from ..limiter.inspect import KeyView
from ..stats.report import Chart
from ..web import keys, rules
from ..web.lists import ListState, files_of
from ..web.middleware import RateLimitMiddleware
from .activity import LoggedEvent, Refusal, only_looks
from .messages import AnyText, View

ListKind: TypeAlias = Literal["blocklist", "allowlist"]

_LIST_KINDS: Final[tuple[ListKind, ...]] = ("blocklist", "allowlist")
_S: Final = 1_000_000
_MS: Final = 1_000
_MAX_RULES: Final = 2_000
"""How many rules of a middleware are shown; limits of routes may add more than that."""


def _seconds(span_us: float | None) -> float | None:
    return None if span_us is None else span_us / _S


def _unix_s(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _milliseconds(span_us: float | None) -> float | None:
    return None if span_us is None else span_us / _MS


def _quantile(share: float) -> BeforeValidator:
    """Return a validator that converts response times to a quantile in milliseconds."""

    def quantile_ms(times: ResponseTimes) -> float | None:
        return _milliseconds(times.quantile(share))

    return BeforeValidator(quantile_ms)


OfMicroseconds: Final = BeforeValidator(_seconds)
OfMoment: Final = BeforeValidator(_unix_s)


# -- stats -----------------------------------------------------------------------------------------------------------

_RESPONSE_TIMES: Final = Field(validation_alias=AliasPath("seen", "rt"))


class Traffic(View):
    """The stats of a group of requests; those refused by a ban or a list are also counted in `refused`."""

    passed: int
    refused: int
    shadow_refused: int
    banned: int
    blocked: int
    exceptions: int
    qps: float
    p50_ms: Annotated[float | None, _quantile(0.5), _RESPONSE_TIMES]
    p95_ms: Annotated[float | None, _quantile(0.95), _RESPONSE_TIMES]
    p99_ms: Annotated[float | None, _quantile(0.99), _RESPONSE_TIMES]


class Worker(View):
    """A worker process, with the age of its stats."""

    name: str
    host: str
    pid: int
    age_s: float
    published_at: Annotated[float, BeforeValidator(lambda age_s: time.time() - age_s), Field(validation_alias="age_s")]


class Stats(View):
    """Stats of all workers."""

    window_s: Annotated[float, OfMicroseconds, Field(validation_alias=AliasPath("total", "seen", "span_us"))]
    workers: list[Worker]
    total: Traffic
    rules: dict[str, Traffic]
    routes: dict[str, Traffic]


class History(View):
    """Stats as a time series, oldest step first; the last step is still running."""

    window_s: float
    step_s: float
    start_at: float
    passed: list[int]
    refused: list[int]
    banned: list[int]
    blocked: list[int]
    shadow_refused: list[int]
    p50_ms: list[float | None]
    p95_ms: list[float | None]

    @classmethod
    def of(cls, chart: Chart) -> Self:
        """Return the stats of a chart."""
        points, counts = chart.points, ("passed", "refused", "banned", "blocked", "shadow_refused")
        return cls(
            window_s=chart.step_us * len(points) / _S,
            step_s=chart.step_us / _S,
            start_at=chart.start_us / _S,
            **{name: [getattr(point, name) for point in points] for name in counts},
            p50_ms=[_milliseconds(point.p50_us) for point in points],
            p95_ms=[_milliseconds(point.p95_us) for point in points],
        )


class Line(View):
    """A sparkline: the requests of a rule or a route, in few points."""

    passed: list[int]
    refused: list[int]


class Lines(View):
    """The sparklines of the busiest rules and routes."""

    rules: dict[str, Line]
    routes: dict[str, Line]


# -- rules and lists ---------------------------------------------------------------------------------------------------


def _each_as_text(limits: Iterable[object]) -> list[str]:
    return [str(limit) for limit in limits]


def _key(key: object) -> str:
    if key is None:
        return "client"
    if isinstance(key, keys.Key):
        return escaped(key.identity, MAX_REASON)
    return escaped(getattr(key, "__qualname__", type(key).__qualname__), MAX_REASON)


class Rule(View):
    """An active rule."""

    name: Annotated[str, Field(validation_alias="label")]
    paths: list[str]
    methods: Annotated[list[str] | None, BeforeValidator(lambda methods: None if methods is None else sorted(methods))]
    connection: str | None
    limits: Annotated[list[str], BeforeValidator(_each_as_text), Field(validation_alias="all_limits")]
    by_request: Annotated[bool, BeforeValidator(callable), Field(validation_alias="limits_function")]
    key: Annotated[str, BeforeValidator(_key)]
    cost: Annotated[int | None, BeforeValidator(lambda cost: None if callable(cost) else cost)]
    action: str
    exempt: bool
    final: bool
    conditional: Annotated[bool, BeforeValidator(lambda when: when is not None), Field(validation_alias="when")]
    count_denied: bool
    wait_s: Annotated[float, OfMicroseconds, Field(validation_alias="wait_us")]


def _texts(signals: Any) -> dict[str, str]:
    return {str(signal): str(weight) for signal, weight in signals.items()}


class Policy(View):
    """A ban policy."""

    name: str
    after: Annotated[str, BeforeValidator(str)]
    duration_s: Annotated[float, OfMicroseconds, Field(validation_alias="duration_us")]
    factor: float
    longest_s: Annotated[float, OfMicroseconds, Field(validation_alias="longest_us")]
    shadow: bool
    signals: Annotated[dict[str, str], BeforeValidator(_texts)]
    key: Annotated[str, BeforeValidator(_key)]


class List(View):
    """A blocklist or an allowlist, with the result of its last reload."""

    kind: ListKind
    middleware: str
    name: str
    path: str | None = None
    entries: int
    changed_at: float | None = None
    status: Literal["loaded", "rejected", "fixed"]
    message: str = ""

    @classmethod
    def all_of(
        cls, name: str, middleware: RateLimitMiddleware, last_reload: Callable[[str], LoggedEvent | None]
    ) -> list[Self]:
        """Return the lists of a middleware.

        Args:
            name: The name of the middleware.
            middleware: The middleware.
            last_reload: Returns the last event about a list in a file.
        """
        views: list[Self] = []
        for kind in _LIST_KINDS:
            listed = middleware.lists[kind]
            files = files_of(listed)
            if files is not None:
                views += [cls._of_file(kind, name, state, last_reload(state.name)) for state in files.states]
            elif listed is not None:
                views.append(cls(kind=kind, middleware=name, name=kind, entries=len(listed), status="fixed"))
        return views

    @classmethod
    def _of_file(cls, kind: ListKind, middleware: str, state: ListState, event: LoggedEvent | None) -> Self:
        return cls(
            kind=kind,
            middleware=middleware,
            name=state.name,
            path=state.path,
            entries=state.entries,
            changed_at=None if state.written_ns is None else state.written_ns / 1_000_000_000,
            status="rejected" if event is not None and event.kind == "list_rejected" else "loaded",
            message="" if event is None else event.message,
        )


class Middleware(View):
    """A middleware, with the rules and policies that it enforces."""

    name: str
    rules: list[Rule]
    endpoints: list[Rule]
    default_limits: list[str]
    policies: list[Policy]

    @classmethod
    def of(cls, name: str, middleware: RateLimitMiddleware) -> Self:
        """Return the view of a middleware."""
        own = {id(rule) for rule in middleware.rules}
        met = [bound.rule for bound in middleware.bound() if id(bound.rule) not in own]
        return cls(
            name=name,
            rules=[Rule.model_validate(rule) for rule in middleware.rules[:_MAX_RULES]],
            endpoints=[Rule.model_validate(rule) for rule in met[:_MAX_RULES]],
            default_limits=_each_as_text(middleware.default_limits),
            policies=[Policy.model_validate(policy) for policy in middleware.policies],
        )


def middlewares_of(limiter: Limiter) -> dict[str, RateLimitMiddleware]:
    """Return the middlewares of a limiter by name; the name includes the configuration file, if there is one."""
    middlewares: dict[str, RateLimitMiddleware] = {}
    for caller in limiter.engine.callers.listed():
        if isinstance(caller, RateLimitMiddleware):
            file = "" if caller.file is None else f" ({caller.file.name})"
            middlewares[f"middleware {len(middlewares) + 1}{file}"] = caller
    return middlewares


def buckets_of(limiter: Limiter) -> Iterator[tuple[rules.Rule, LimitSet]]:
    """Yield the limit sets of all middlewares; a shared one is yielded once for each middleware."""
    for middleware in middlewares_of(limiter).values():
        for bound in middleware.bound():
            for bucket in (bound.bucket, bound.permits):
                if bucket is not None:
                    yield bound.rule, bucket


class Rules(View):
    """The active rules, by middleware."""

    middlewares: list[Middleware]


class Lists(View):
    """The block and allow lists."""

    lists: list[List]


# -- clients -----------------------------------------------------------------------------------------------------------


class Ban(View):
    """An active ban."""

    target: Annotated[AnyText, Field(validation_alias="key")]
    reason: str
    policy: Annotated[str, Field(validation_alias="by")]
    since_at: Annotated[float, OfMoment, Field(validation_alias="since")]
    until_at: Annotated[float | None, OfMoment, Field(validation_alias="until")]
    level: int


class Bans(View):
    """A page of the active bans.

    Over all pages, `matching` of `total` bans match the query.
    """

    bans: list[Ban]
    next: str | None
    matching: int
    total: int


class Slice(View):
    """A part of a window."""

    start_at: Annotated[float, OfMicroseconds, Field(validation_alias="start_us")]
    end_at: Annotated[float, OfMicroseconds, Field(validation_alias="end_us")]
    count: Annotated[int, Field(validation_alias="units")]


def _in_unix_time(part: WindowSlice, ahead_us: int) -> WindowSlice:
    return part._replace(start_us=part.start_us + ahead_us, end_us=part.end_us + ahead_us)


class Window(View):
    """The units spent of a limit, slice by slice; `refuses` is false for a shadow rule.

    `fallback` is true if the limits of a function are unknown to this worker, and its fall-back is shown.
    """

    rule: Annotated[str, Field(validation_alias="label")]
    limit: Annotated[str, BeforeValidator(str)]
    amount: Annotated[int, Field(validation_alias=AliasPath("limit", "amount"))]
    used: int
    remaining: int
    retry_after_s: Annotated[float | None, OfMicroseconds, Field(validation_alias="retry_after_us")]
    more_after_s: Annotated[float, OfMicroseconds, Field(validation_alias="more_after_us")]
    reset_after_s: Annotated[float, OfMicroseconds, Field(validation_alias="reset_after_us")]
    refuses: Annotated[bool, BeforeValidator(lambda rule: not only_looks(rule)), Field(validation_alias="rule")]
    fallback: bool
    slices: list[Slice]

    @classmethod
    def of_key(cls, view: KeyView, recent: Iterable[str] | None = None) -> list[Self]:
        """Return the windows of a key.

        Args:
            view: The windows.
            recent: The identities of rules whose empty windows are included; None for all.
        """
        ahead_us = view.unix_us - view.now_us
        shown = [window for window in view.windows if window.used or recent is None or window.rule in recent]
        return [
            cls.model_validate(window._replace(slices=tuple(_in_unix_time(part, ahead_us) for part in window.slices)))
            for window in shown
        ]


class Nearest(View):
    """The limit of which a client has spent the largest share."""

    rule: str
    limit: str
    used: int
    amount: int
    share: float

    @classmethod
    def of(cls, decision: Decision) -> Self | None:
        """Return the limit with the largest share spent, from a decision about one unit; None without limits."""
        unspent = 1 if decision.allowed else 0
        used = [reading[0] - unspent for reading in decision.readings]
        if not used:
            return None
        labels = {bucket.rule: bucket.label for bucket, _, _ in decision.checks}
        pairs = zip(decision.states, used, strict=True)
        state, most = max(pairs, key=lambda pair: pair[1] / pair[0].limit.amount)
        amount = state.limit.amount
        return cls(rule=labels[state.rule], limit=str(state.limit), used=most, amount=amount, share=most / amount)


class BusyClient(View):
    """A client of the last five minutes; `network` is empty if no network file covers its address."""

    key: AnyText
    network: AnyText
    requests: int
    refused: int
    nearest: Nearest | None
    banned: bool


class Clients(View):
    """The busiest clients."""

    window_s: float
    clients: list[BusyClient]


class Refusals(View):
    """The latest refusals, newest first."""

    refusals: list[Refusal]


class Client(View):
    """Everything about one client."""

    key: AnyText
    ban: Ban | None
    windows: list[Window]
    refusals: list[Refusal]


class ShadowClient(View):
    """A client that a shadow rule would have refused."""

    key: AnyText
    count: int


class ShadowRule(View):
    """A shadow rule, with the clients that it would have refused."""

    name: str
    limits: list[str]
    passed: int
    would_refuse: int
    share: float
    clients: list[ShadowClient]


class Shadow(View):
    """The shadow rules."""

    window_s: float
    clients_window_s: float
    rules: list[ShadowRule]


class Lifted(View):
    """The target of a removed ban."""

    target: AnyText


class Limit(View):
    """A temporarily changed limit."""

    name: AnyText
    limit: AnyText
    by: AnyText
    reason: AnyText
    since_at: Annotated[float, OfMoment, Field(validation_alias="since")]
    until_at: Annotated[float, OfMoment, Field(validation_alias="until")]


class Limits(View):
    """The temporarily changed limits."""

    limits: list[Limit]


class Restored(View):
    """The name of a limit that was restored to the amount configured in code."""

    name: AnyText


# -- the limiter -------------------------------------------------------------------------------------------------------


class Events(View):
    """Events, newest first."""

    events: list[LoggedEvent]


class Finding(View):
    """A probable mistake, found at startup."""

    code: str
    message: str
    middleware: str


class Config(View):
    """The settings and the workers."""

    version: str
    python: str
    compiled: bool
    store: str
    per_process: bool
    deadline_s: float | None
    on_error: str | None
    findings: list[Finding]
    workers: list[Worker]


class User(View):
    """The user who sends the request."""

    role: Literal["read", "full"]
    name: str


class Snapshot(View):
    """The data of the live view; if the store does not answer, only `problem`."""

    at: float
    stats: Stats | None = None
    history: History | None = None
    clients: list[BusyClient] = Field(default_factory=list)
    lines: Lines | None = None
    problem: str | None = None
