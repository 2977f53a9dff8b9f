"""Rules: a rule applies limits to the requests that it matches.

All rules that match a request apply, in order, up to the first one that is `exempt`, `final` or blocks.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar

from starlette.types import Scope

from ..core.arguments import check_name, check_whole
from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limit_texts import parse_limits
from ..core.limits import MAX_AMOUNT, AnyLimit, Concurrency, check_within
from ..core.options import options_checked
from ..limiter import check_cost
from ..limiter.failover import OnError
from .keys import Key, KeyCondition, KeyFunction, path_parameters
from .paths import RulePath
from .routes import text_of_methods

CostFunction: TypeAlias = Callable[[Any], int | Awaitable[int]]
Limits: TypeAlias = str | AnyLimit | Iterable[str | AnyLimit]
LimitsFunction: TypeAlias = Callable[[Any], Limits | Awaitable[Limits]]
CountIf: TypeAlias = Callable[[int], bool]
"""Returns whether a response counts, given its status."""
Condition: TypeAlias = Callable[[Any], object] | KeyCondition
"""Determines whether a rule applies to a request: a sync or async function that returns a truth value, or a condition
built from a key such as `network`."""

_T = TypeVar("_T")

DEFAULT_FALLBACK: Final = "60/minute"
DEFAULT_WAIT_MAX: Final = 16
MAX_LABEL: Final = 64
"""The maximum length of the label of an unnamed rule."""

_METHOD: Final = re.compile("[A-Za-z][A-Za-z0-9_-]*")
"""A token (RFC 9110, section 5.6.2) but for signs such as "*", which no method has and which would mean none."""
_USUAL: Final = {"cost": 1, "wait_max": DEFAULT_WAIT_MAX, "status": 403, "fallback_limits": DEFAULT_FALLBACK}
"""The defaults that are not None or False."""
# The options of limits, and those of all rules that count.
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
    ("fallback_limits", "a function for limits", "limits=plan_of"),
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
            that returns text, or None for the client's address. By default the middleware's `client`.
        cost: Units per request, at most the amount of each limit, or a sync or async function of the request. It may
            be an estimate, which `settle` replaces by the actual use.
        cost_max: The most units that the cost function charges, whatever it returns, and the cost if it fails; by
            default, and at most, the smallest amount of the limits, because a request that costs more can never pass.
        unit: What the limits count if not requests, for example ``"tokens"``; shown in header fields.
        count_if: Count only requests with certain responses: statuses, ``[401, 403]``, or a function of the status that
            returns True or False, ``lambda status: status == 401``. The cost is reserved first and refunded when the
            response starts, so concurrent requests cannot exceed the bound. A refusal that only such reservations of
            its process cause says to try again in a second.
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
        status: The response status of a blocked request, 400 to 599.

    Attributes:
        paths: The paths as they were written; ``"*"`` for all.
        rule_paths: The same, parsed; none for all.
        methods: The methods in upper case; None for all.
        connection: The type of connection; None for both.
        when: The condition; None for none.
        limits: The limits; if a function returns them, those that apply if it fails.
        limits_function: The function that returns them; None for none.
        concurrency: The limit of simultaneous requests; None for none.
        key: What it counts by; None for the client's address.
        cost: The units of a request; if a function returns them, those that apply if it fails.
        cost_function: The function that returns them; None for none.
        wait_us: How long a request may wait; 0 if it does not.
        exempts: Whether it lets requests pass uncounted.
        blocks: Whether it refuses every request.
        is_shadow: Whether it only reports what it would refuse.
        is_final: Whether no later rule applies.
        status: The status of the response to a blocked request.
        label: The name, else methods and paths, for display.
        where: Where it is written, for findings.

    The other attributes are the options of the same names.

    Raises:
        ConfigurationError: An option is invalid, or options cannot be combined.
    """

    where = "the middleware"

    @options_checked
    def __init__(
        self,
        path: str | Iterable[str],
        limits: Limits | LimitsFunction | None = None,
        *,
        fallback_limits: Limits = DEFAULT_FALLBACK,
        when: Condition | None = None,
        concurrency: int | str | None = None,
        methods: Iterable[str] | None = None,
        connection: Literal["http", "websocket"] | None = None,
        key: Key | KeyFunction | None = None,
        cost: int | CostFunction = 1,
        cost_max: int | None = None,
        unit: str | None = None,
        count_if: CountIf | Iterable[int] | None = None,
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
        status: int = 403,
    ) -> None:
        options = locals()  # as they were given
        self.paths, self.rule_paths = _parsed(path)
        self.methods = _checked_methods(methods)
        self.connection = connection
        self.when = when
        _check_together(options)
        self.exempts = exempt
        self.blocks = block
        self.is_shadow = shadow
        self.is_final = final or exempt or block
        self.status = check_whole(status, 400, 599, "status", "for example 503")
        self.limits_function, self.cost_function = None, None
        if callable(limits):
            self.limits_function, limits = limits, fallback_limits
        self.cost_max = _if_set(check_whole, cost_max, 1, MAX_AMOUNT, "cost_max", "for example 4000")
        self.limits: tuple[AnyLimit, ...] = _if_set(parse_limits, limits) or ()
        if callable(cost):
            self.cost_function, cost = cost, cost_max or 1
        elif self.limits and not self.limits_function:
            check_within(cost, self.limits, "cost")
        self.concurrency = _if_set(Concurrency, concurrency)
        self.key = key
        self._check_key(key)
        self.cost = check_cost(cost)
        self.unit = _if_set(check_name, unit, "unit")
        self.count_if = count_if
        if count_if is not None and not callable(count_if):
            self.count_if = _counts_statuses(count_if)
        self.count_denied = count_denied
        self.on_error = on_error
        self.wait_us = _if_set(parse_duration_us, wait, "wait") or 0
        self.wait_max = check_whole(wait_max, 1, 1_000, "wait_max", "for example 16")
        self.fair = fair
        self._check_key(fair, "fair")
        self.name = _if_set(check_name, name, "name")
        self.label = self.name or label_of(sorted(self.paths), self.methods or ())

    def __repr__(self) -> str:
        words = [repr(self.label)]
        if self.limits_function is not None:
            words.append("by request")
        elif self.counts:
            words.append("; ".join(map(str, self.all_limits)))
        if self.action != "limit":
            words.append(self.action)
        return f"<Rule {' '.join(words)}>"

    def keyed(self, key: Key | KeyFunction | None) -> Rule:
        """Return the rule with a key, if it counts and has none; else unchanged."""
        if key is None or self.key is not None or not self.counts:
            return self
        rule = copy(self)
        rule.key = key
        rule._check_key(key)
        return rule

    def may_match(self, scope_type: str, method: object) -> bool:
        """Return whether requests of a connection type and a method can match, for a limit or a block.

        The case of the method is ignored, and a method that is not text may be any method.
        """
        if self.connection not in (None, scope_type):
            return False
        if self.methods is None or not isinstance(method, str):
            return True
        return method.lower().upper() in self.methods  # the Kelvin sign is "k" in lower case alone

    def takes(self, path: RulePath, text: str) -> bool:
        """Return whether it applies to the text of a request's path because of one of its paths, if nothing is odd."""
        if self.exempts:
            return path.is_exactly(text)
        return path.takes(text) is not None

    def _check_key(self, key: object, option: str = "key") -> None:
        """Check that its paths have the parameters by which it counts."""
        names_by_path = {path.path: path.convertors for path in self.rule_paths}
        for path, names in (names_by_path or {"*": {}}).items():
            for name in path_parameters(key):
                if name not in names:
                    problem = f"{quoted(path)} has no parameter {quoted(name)}{closest(name, names)}"
                    raise ConfigurationError(f"path_param: {problem}", option)

    @property
    def identity(self) -> str:
        """The owner of its counts in a store, in which ":" separates the parts of names."""
        return self.identity_of(self.label.replace(":", "|"))

    def identity_of(self, name: str) -> str:
        """Return the owner of its counts, given its name; a shadow rule has separate windows under another's name."""
        if self.is_shadow:
            return f"{name}:shadow"
        return name

    @property
    def reserves(self) -> bool:
        """Whether what it charges may be handed back."""
        return self.count_if is not None or self.cost_max is not None

    @property
    def counts(self) -> bool:
        """Whether the rule counts requests; one that exempts or blocks them does not."""
        return bool(self.all_limits)

    @property
    def all_limits(self) -> tuple[AnyLimit, ...]:
        """The fixed limits, the concurrency limit last."""
        if self.concurrency is None:
            return self.limits
        return (*self.limits, self.concurrency)

    @property
    def action(self) -> str:
        """What it does with requests: ``limit``, ``shadow``, ``block`` or ``exempt``."""
        if self.exempts:
            return "exempt"
        if self.blocks:
            return "block"
        if self.is_shadow:
            return "shadow"
        return "limit"


def method_of(scope: Scope) -> Any:
    """Return the method of a request; a handshake is a GET, even if its server names another, as NGINX Unit did."""
    if scope["type"] == "websocket":
        return "GET"
    return scope.get("method", "GET")


def _parsed(path: str | Iterable[str]) -> tuple[tuple[str, ...], tuple[RulePath, ...]]:
    """Return paths as they were written, and parsed; parsed none for all."""
    paths = tuple(path)
    if isinstance(path, str):
        paths = (path,)
    if not paths:  # which would mean every path
        raise ConfigurationError('expected paths such as ["/login", "/token"], not an empty list', "path")
    if paths == ("*",):
        return paths, ()
    return paths, tuple([RulePath(text) for text in paths])


def _checked_methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    """Return methods in upper case; None for all."""
    if methods is None:
        return None
    if not methods or not all(map(_METHOD.fullmatch, methods)):
        raise ConfigurationError(
            f'expected a list such as ["GET", "POST"], not {quoted(methods)}; omit it for all methods', "methods"
        )
    names = {method.upper() for method in methods}
    if "GET" in names:
        names.add("HEAD")
    return frozenset(names)


class _Statuses(frozenset[int]):
    """A `count_if` of statuses, which is equal to one of the same statuses."""

    __call__ = frozenset.__contains__


def _counts_statuses(listed: Iterable[int]) -> CountIf:
    """Return the function that says whether a response counts, given the statuses that do."""
    statuses = _Statuses([check_whole(status, 100, 599, "count_if", "for example 401") for status in listed])
    if not statuses:
        raise ConfigurationError("expected statuses such as [401, 403], not an empty list", "count_if")
    return statuses


def _check_together(given: Mapping[str, object]) -> None:
    """Check for options that cannot be combined with another one, or require one."""
    options = {option for option, value in given.items() if _is_set(option, value)}
    if callable(given["limits"]):
        options.add("a function for limits")
    for option, others, why in EXCLUSIONS:
        for other in others:
            if {option, other} <= options:
                raise ConfigurationError(f"cannot be combined with {other}: {why}; remove one of them", option)
    for option, needed, example in NEEDS:
        if option in options and needed not in options:
            raise ConfigurationError(f"requires {needed}; add {example}, or remove {option}", option)
    if not options & {"limits", "concurrency", "exempt", "block"}:
        raise ConfigurationError('expected limits such as "5/minute"', "limits")


def _is_set(option: str, value: object) -> bool:
    """Return whether the value of an option differs from its default."""
    if isinstance(value, (int, str)) and value == _USUAL.get(option):
        return False
    return value is not None and value is not False


def _if_set(check: Callable[..., _T], value: object, *more: object) -> _T | None:
    """Return an option as `check` returns it; None if it is not set."""
    if value is None:
        return None
    return check(value, *more)


def label_of(paths: Sequence[str], methods: Collection[str] = ()) -> str:
    """Return methods and paths as `printable` text: ``POST /login``, ``/search``, or ``default`` for all paths."""
    text = " ".join(paths)
    if paths[0] == "*":
        text = "default"
    return printable(f"{text_of_methods(methods)} {text}".lstrip())[:MAX_LABEL]


def printable(text: str) -> str:
    """Return a text as printable ASCII, without ";", which separates limits."""
    return text.encode("unicode_escape").decode().replace(";", "|")
