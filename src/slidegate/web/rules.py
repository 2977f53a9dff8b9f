"""Rules: a rule applies limits to the requests that it matches.

All rules that match a request apply, in order, up to the first one that is `exempt`, `final` or blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from copy import copy
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeAlias

from ..core.arguments import check_flag, check_list, check_name, check_takes, check_whole, names_checked
from ..core.concurrency import Concurrency
from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limit_texts import parse_limits
from ..core.limits import MAX_AMOUNT, AnyLimit
from ..limiter import check_cost
from ..limiter.failover import OnError, check_on_error
from .clients import client_key
from .keys import Key, KeyCondition, KeyFunction, path_parameters
from .paths import RulePath

CostFunction: TypeAlias = Callable[[Any], int | Awaitable[int]]
Limits: TypeAlias = str | AnyLimit | Iterable[str | AnyLimit]
LimitsFunction: TypeAlias = Callable[[Any], Limits | Awaitable[Limits]]
CountIf: TypeAlias = Callable[[int], object]
"""Returns whether a response counts, given its status."""
Connection: TypeAlias = Literal["http", "websocket"]
Condition: TypeAlias = Callable[[Any], object] | KeyCondition
"""Determines whether a rule applies to a request: a sync or async function that returns a truth value, or a condition
built from a key such as `network`."""

DEFAULT_WAIT_MAX: Final = 16
DEFAULT_FALLBACK: Final = "60/minute"
MAX_LABEL: Final = 64
"""The maximum length of the label of an unnamed rule."""

_OF_LIMITS: Final = ("cost", "unit", "count_if", "count_denied", "shadow")
_COUNTING: Final = ("limits", "concurrency", "key", "wait", "fair", "on_error", *_OF_LIMITS)
EXCLUSIONS: Final = (
    ("exempt", (*_COUNTING, "block"), "an exempt request is not counted"),
    ("block", (*_COUNTING, "final"), "a blocked request is not counted, and no later rule applies to it"),
    ("shadow", ("concurrency", "count_if", "wait", "final"), "a shadow rule only reports"),
    ("wait", ("count_denied",), "nothing is charged for a request before its turn"),
)
"""Options that cannot be combined with others, and the reason. The JSON Schema of `slidegate.toml` is generated from
this table, too."""
NEEDS: Final = (
    ("status", "block", "block=True"),
    ("fair", "concurrency", "concurrency=15"),
    ("fair", "wait", 'wait="30s"'),
    ("wait_max", "wait", 'wait="200ms"'),
    *((option, "limits", 'limits such as "60/minute"') for option in _OF_LIMITS),
)
"""Options that require another option, and an example of it."""


class Rule:
    """Applies limits to the requests it matches, counted by key.

    Args:
        path: A path in Starlette's syntax (``"/items/{id:int}"``, ``"/api/{rest:path}"``), a list of paths that share
            their counts, or ``"*"`` for all. It is compared with the path below `root_path`: a limit applies if any
            reading of the request's path matches, `exempt` and `final` only if all readings match.
        limits: ``"5/minute; 50/hour"``, a `Limit`, a `Quota` or several; or, for limits that depend on the client, a
            sync or async function of the request that returns them or ``"unlimited"``. Required unless
            `exempt`, `block` or `concurrency` is given.
        fallback_limits: The limits that apply if the `limits` function fails, or returns anything else.
        when: A sync or async function of the request (without its body): the rule applies only if it returns a true
            value; or a condition built from a key, such as ``network("GeoLite2-Country.mmdb").is_in("NL")``. If it
            fails, limits and blocks apply, and exemptions do not.
        concurrency: The most simultaneous requests of a key, ``"4"`` or 4, alone or in addition to limits. A request
            counts from its admission to the last byte of its response, a websocket until it ends.
        methods: HTTP methods, by default all; GET includes HEAD. A websocket handshake is a GET. Limits ignore the
            case of a request's method.
        connection: ``"http"`` or ``"websocket"``; by default both.
        key: What to count by: `everyone`, `header(...)`, or a sync or async function of the request (without its body)
            that returns text, or None to skip the request. By default the middleware's `client`.
        cost: Units per request, or a sync or async function of the request. It may be an estimate, which
            `settle` replaces by the actual use.
        cost_max: The most units that the cost function may return; by default, and at most, the smallest
            amount of the limits, because a request that costs more can never pass.
        unit: What the limits count if not requests, for example ``"tokens"``; shown in header fields.
        count_if: Count only requests with certain responses: ``lambda status: status == 401``. The cost is reserved
            first and refunded when the response starts, so concurrent requests cannot exceed the bound.
        count_denied: Count refused requests as well: a client that keeps sending stays refused.
        wait: ``"200ms"``: a request that would be admitted within this time waits instead of being refused, in arrival
            order for each key and process; for a permit at most this long. A request waits in one queue, that of its
            first rule with `wait`, and nothing is charged before its turn. It cannot be combined with `count_denied`.
        wait_max: The most requests of one key that wait at a time. Those whose clients have left make room for others.
        fair: Shares permits fairly among waiting tenants: a key such as `user`, or a function of the request, as for
            `key`. A released permit goes to the tenant that holds the fewest in this process, and to its oldest
            waiting request. Requests without a value form one tenant.
        on_error: How this rule decides when the store fails: ``"local"``, ``"allow"`` or ``"deny"``, as for
            `Limiter`; by default as its limiter does. If several rules apply to a request, one that denies takes
            precedence, and those that allow are ignored.
        name: The name of the limit in headers and logs. Counts belong to the name: they survive changes of the rule
            and are shared with other middlewares.
        exempt: Let matching requests pass; no later rule counts them.
        final: No later rule applies to matching requests.
        shadow: Decide on separate windows, report the requests that would have been refused, and refuse none.
        block: Refuse every matching request; no later rule applies. Such a rule has no limits.
        status: The response status of a blocked request, 400 to 599; by default 403.

    Raises:
        ConfigurationError: An option is invalid, or options cannot be combined.
    """

    max_body = 1_000_000
    """How many bytes of a body the functions of a limit at an endpoint may read."""

    @names_checked
    def __init__(
        self,
        path: str | Iterable[str],
        limits: Limits | LimitsFunction | None = None,
        *,
        fallback_limits: Limits = DEFAULT_FALLBACK,
        when: Condition | None = None,
        concurrency: int | str | None = None,
        methods: Iterable[str] | None = None,
        connection: Connection | None = None,
        key: Key | KeyFunction | None = None,
        cost: int | CostFunction = 1,
        cost_max: int | None = None,
        unit: str | None = None,
        count_if: CountIf | None = None,
        count_denied: bool = False,
        wait: str | timedelta | None = None,
        wait_max: int = DEFAULT_WAIT_MAX,
        fair: Key | KeyFunction | None = None,
        on_error: OnError | None = None,
        name: str | None = None,
        exempt: bool = False,
        final: bool = False,
        shadow: bool = False,
        block: bool = False,
        status: int | None = None,
    ) -> None:
        flags = {"exempt": exempt, "final": final, "shadow": shadow, "block": block, "count_denied": count_denied}
        for option, flag in flags.items():
            check_flag(option, flag)
        self.paths = checked_paths(path)
        self.rule_paths = tuple(RulePath(path) for path in self.paths if path != "*")
        self.methods = checked_methods(methods)
        if connection not in (None, "http", "websocket"):
            raise ConfigurationError(f'expected "http" or "websocket", not {quoted(connection)}', "connection")
        self.connection = connection
        self.when = when if when is None or isinstance(when, KeyCondition) else check_takes("when", when, "request")
        options: dict[str, object] = {**flags, "limits": limits, "concurrency": concurrency, "key": key, "unit": unit}
        options |= {"cost": None if cost == 1 else cost, "cost_max": cost_max, "count_if": count_if, "wait": wait}
        options |= {"status": status, "on_error": on_error, "fair": fair}
        options["wait_max"] = None if wait_max == DEFAULT_WAIT_MAX else wait_max
        self._check_together({option for option, value in options.items() if value is not None and value is not False})
        self.exempt = exempt
        self.final = final or exempt
        self.shadow = shadow
        self.blocks = block
        self.concurrency = None if concurrency is None else Concurrency(concurrency)
        self._read_limits(limits, fallback_limits)
        self.key = self._checked_key(key)
        self._read_cost(cost, cost_max)
        self.unit = None if unit is None else check_name(unit, "unit")
        if iscoroutinefunction(count_if):
            expected = "a plain function such as lambda status: status == 401"
            raise ConfigurationError(f"expected {expected}, not {quoted(count_if)}", "count_if")
        self.count_if = None if count_if is None else check_takes("count_if", count_if, "status")
        self.count_denied = count_denied
        self.wait_us = 0 if wait is None else parse_duration_us(wait, "wait")
        self.wait_max = check_whole(wait_max, 1, 1_000, "wait_max", "for example 16")
        self.fair = self._checked_key(fair, "fair")
        self.on_error = None if on_error is None else check_on_error(on_error)
        self.name = None if name is None else check_name(name, "name")
        self.label = label_of(sorted(self.paths), self.methods or ()) if name is None else name
        """The name of the rule, else its methods and paths, for display."""
        self.status = 403 if status is None else check_whole(status, 400, 599, "status", "for example 503")

    def _check_together(self, given: set[str]) -> None:
        """Check for options that cannot be combined with another one, or require one."""
        for option, others, why in EXCLUSIONS:
            for other in others:
                if {option, other} <= given:
                    raise ConfigurationError(f"cannot be combined with {other}: {why}; remove one of them", option)
        for option, needed, written in NEEDS:
            if option in given and needed not in given:
                raise ConfigurationError(f"requires {needed}; add {written}, or remove {option}", option)
        if not given & {"limits", "concurrency", "exempt", "block"}:
            raise ConfigurationError(f'{self._call}: expected limits such as "5/minute"')

    def _read_limits(self, limits: Limits | LimitsFunction | None, fallback_limits: Limits) -> None:
        self.limits_function = check_takes("limits", limits, "request") if callable(limits) else None
        fallback = parse_limits(fallback_limits)
        if fallback_limits != DEFAULT_FALLBACK and not callable(limits):
            raise ConfigurationError("requires a function as limits; add one, or remove it", "fallback_limits")
        self.limits = fallback if callable(limits) else () if limits is None else parse_limits(limits)

    def _read_cost(self, cost: int | CostFunction, cost_max: int | None) -> None:
        self.cost_function = check_takes("cost", cost, "request") if callable(cost) else None
        self.cost = 1 if callable(cost) else check_cost(cost)
        self.cost_max = cost_max
        if cost_max is not None:
            if not callable(cost):
                raise ConfigurationError("requires a function as cost; add one, or remove cost_max", "cost_max")
            check_whole(cost_max, 1, MAX_AMOUNT, "cost_max", "for example 4000")
        name, most = ("cost_max", cost_max or 0) if callable(cost) else ("cost", self.cost)
        for limit in self.limits if self.limits_function is None else ():
            if most > limit.amount:
                raise ConfigurationError(
                    f"{quoted(most)} is more than {str(limit)!r} allows, so {self._call} could never pass", name
                )

    def __repr__(self) -> str:
        limits = "by request" if self.limits_function is not None else "; ".join(map(str, self.all_limits))
        shown = repr(self.label), limits, "" if self.action == "limit" else self.action
        return f"<Rule {' '.join(filter(None, shown))}>"

    def keyed(self, key: Key | KeyFunction) -> Rule:
        """Return the rule with the given key if it counts and has no key of its own, else unchanged."""
        if self.key is not None or not self.counts:
            return self
        rule = copy(self)
        rule.key = self._checked_key(key)
        return rule

    def _checked_key(self, key: Key | KeyFunction | None, option: str = "key") -> Key | KeyFunction | None:
        if isinstance(key, Key):
            self._check_parameters(key, option)
        return checked_key(key, option)

    def _check_parameters(self, key: Key, option: str) -> None:
        """Check that its paths have the parameters by which it counts."""
        names: Collection[str]
        for path, names in [(path.path, path.convertors) for path in self.rule_paths] or [("*", {})]:
            for name in path_parameters(key):
                if name not in names:
                    problem = f"{quoted(path)} has no parameter {quoted(name)}{closest(name, names)}"
                    raise ConfigurationError(f"path_param: {problem}", option)

    @property
    def _call(self) -> str:
        return f"Rule({quoted(self.paths[0] if len(self.paths) == 1 else list(self.paths))})"

    @property
    def identity(self) -> str:
        """The owner of its counts in a store."""
        return self.identity_of(self.label)

    def identity_of(self, name: str) -> str:
        """Return the owner of its counts, given its name; a shadow rule has separate windows under another's name."""
        return f"{name}:shadow" if self.shadow else name

    @property
    def action(self) -> str:
        """What it does with the requests that it matches: ``exempt``, ``block``, ``shadow`` or ``limit``."""
        return "exempt" if self.exempt else "block" if self.blocks else "shadow" if self.shadow else "limit"

    @property
    def counts(self) -> bool:
        """Whether the rule counts requests; one that exempts or blocks them does not."""
        return bool(self.all_limits)

    @property
    def all_limits(self) -> tuple[AnyLimit, ...]:
        """The fixed limits, the concurrency limit last."""
        return self.limits if self.concurrency is None else (*self.limits, self.concurrency)

    @property
    def always(self) -> bool:
        """Whether the rule applies to every request."""
        return not self.rule_paths and self.methods is None and self.connection is None and self.when is None


def checked_key(key: Key | KeyFunction | None, option: str = "key") -> Key | KeyFunction | None:
    """Return a key after checking that it is one, or a function of the request.

    Raises:
        ConfigurationError: It is neither, or a function of this package that returns a key.
    """
    if key is None or isinstance(key, Key):
        return key
    if not callable(key):
        expected = 'expected client_ip(), header("X-API-Key") or a function'
        raise ConfigurationError(f"{expected}, not {quoted(key)}", option)
    if f"{getattr(key, '__module__', '')}".startswith("slidegate.") and key is not client_key:
        raise ConfigurationError(f'{key!r} returns a key; call it, for example header("X-API-Key")', option)
    return check_takes(option, key, "request")


def label_of(paths: Sequence[str], methods: Collection[str] = ()) -> str:
    """Return methods and paths as `printable` text: ``POST /login``, ``/search``, or ``default`` for all paths."""
    text = "default" if paths[0] == "*" else " ".join(paths)
    names = {*methods} - ({"HEAD"} if "GET" in methods else set())
    return printable(f"{','.join(sorted(names))} {text}".lstrip())[:MAX_LABEL]


def printable(text: str) -> str:
    """Return a text as printable ASCII, without ":" and ";", which separate parts of other names."""
    return text.encode("unicode_escape").decode().replace(":", "|").replace(";", "|")


def checked_paths(path: Any) -> tuple[str, ...]:
    """Return the paths of a rule, which `RulePath` checks one by one."""
    if path == "*":
        return ("*",)
    listed: list[Any] = [path] if isinstance(path, (str, bytes)) or not isinstance(path, Iterable) else list(path)
    if not listed:
        raise ConfigurationError('expected paths such as ["/login", "/token"], not an empty list', "path")
    for index, one in enumerate(listed):
        if one == "*":
            raise ConfigurationError(f'"*" means every path; do not combine it with others: {quoted(listed)}', "path")
        if one in listed[:index]:
            raise ConfigurationError(f"{quoted(one)} is listed twice in {quoted(listed)}; write it once", "path")
    return tuple(listed)


def checked_methods(methods: object) -> frozenset[str] | None:
    if methods is None:
        return None
    expected = 'a list such as ["GET", "POST"]'
    names = set()
    for method in check_list("methods", methods, expected, str):
        if not (method.isascii() and method.isalpha()):
            raise ConfigurationError(f"expected {expected}, not {quoted(method)} in it", "methods")
        names.add(method.upper())
    if not names:
        raise ConfigurationError(f"expected {expected}, not an empty list; omit it for all methods", "methods")
    return frozenset(names | {"HEAD"} if "GET" in names else names)
