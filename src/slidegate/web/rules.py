"""Which requests are held to which limits.

Every rule that matches a request applies; one that is `exempt` or `final` ends the list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import Scope

from ..core.decision import Bucket, Check, unique_name, wire_names
from ..core.errors import ConfigurationError
from ..core.limits import Limit, check_name, parse_limits
from ..limiter import Limiter, check_cost
from .keys import Key, KeyFunction
from .startup import names_checked

CostFunction: TypeAlias = Callable[[HTTPConnection], int | Awaitable[int]]
Connection: TypeAlias = Literal["http", "websocket"]

_MEMO: Final = 2_048
_MEMO_PATH: Final = 256


class Rule:
    """Holds the requests it matches to its limits, counted by its key.

    Args:
        path: A path in Starlette's syntax (``"/items/{id:int}"``, ``"/api/{rest:path}"``), or ``"*"`` for all. It is
            compared with the path as the application below the middleware sees it: without `root_path`.
        limits: ``"5/minute; 50/hour"``, a `Limit` or several. Needed unless `exempt`.
        methods: HTTP methods; GET includes HEAD. A websocket handshake is a GET. By default all.
        connection: ``"http"`` or ``"websocket"``; by default both.
        key: Whom to count: `everyone`, `header(...)`, or a function, sync or async, of the request (which has no body
            here) that returns text, or None to leave the request uncounted. By default the middleware's `client`.
        cost: Units for one request, or a function of the request, sync or async.
        name: What the limit is called in headers and logs, and what keeps its counts together.
        exempt: Let matching requests pass; no later rule counts them.
        final: No later rule applies to matching requests.

    Raises:
        ConfigurationError: A value cannot work.
    """

    @names_checked
    def __init__(
        self,
        path: str,
        limits: str | Limit | Iterable[str | Limit] | None = None,
        *,
        methods: Iterable[str] | None = None,
        connection: Connection | None = None,
        key: Key | KeyFunction | None = None,
        cost: int | CostFunction = 1,
        name: str | None = None,
        exempt: bool = False,
        final: bool = False,
    ) -> None:
        self.path = path
        self._pattern = _compile(path)
        self.methods = _methods(methods)
        if connection not in (None, "http", "websocket"):
            raise ConfigurationError(f'connection: expected "http" or "websocket", not {connection!r}')
        self.connection = connection
        if exempt is not True and limits is None:
            raise ConfigurationError(f'Rule({path!r}): expected limits, for example Rule({path!r}, "5/minute")')
        if exempt and limits is not None:
            raise ConfigurationError(
                f"Rule({path!r}): exempt requests are not counted; leave out limits or exempt=True"
            )
        self.limits = parse_limits(limits) if limits is not None else ()
        if key is not None and not isinstance(key, Key) and not callable(key):
            raise ConfigurationError(f'key: expected client_ip(), header("X-API-Key") or a function, not {key!r}')
        self.key = key
        self.cost = cost if callable(cost) else self._fixed_cost(cost)
        self.name = None if name is None else check_name(name, "rule name")
        self.exempt = exempt
        self.final = final or exempt

    def _fixed_cost(self, cost: int) -> int:
        check_cost(cost)
        for limit in self.limits:
            if cost > limit.amount:
                raise ConfigurationError(
                    f"cost: {cost} is more than {str(limit)!r} allows, so Rule({self.path!r}) could never pass"
                )
        return cost

    def __repr__(self) -> str:
        return f"<Rule {self.label!r} {'; '.join(map(str, self.limits)) or 'exempt'}>"

    @property
    def label(self) -> str:
        """What to call the rule where people read it: its name, else its path."""
        return self.name or ("default" if self.path == "*" else self.path.replace(":", "|").replace(";", "|")[:64])

    @property
    def identity(self) -> str:
        """What its counts belong to: its name, else a digest of path, methods, key and windows."""
        if self.name is not None:
            return self.name
        key = self.key
        facts = (
            self.path,
            sorted(self.methods) if self.methods is not None else None,
            self.connection,
            key.identity if isinstance(key, Key) else key and f"{key.__module__}.{getattr(key, '__qualname__', key)}",
            sorted(limit.same_window for limit in self.limits),
        )
        return f"{self.label[:40]}:{blake2b(repr(facts).encode(), digest_size=8).hexdigest()}"

    @property
    def always(self) -> bool:
        """Whether the rule is about every request."""
        return self._pattern is None and self.methods is None and self.connection is None

    def matches(self, connection: str, method: str, path: str) -> bool:
        """Tell whether the rule is about a request."""
        return (
            (self.methods is None or method in self.methods)
            and (self.connection is None or connection == self.connection)
            and (self._pattern is None or self._pattern(path) is not None)
        )


class Gate:
    """A rule at work: its bucket, and how to get from a request to a check.

    Attributes:
        rule: The rule.
        bucket: What its counts belong to.
        key: The built-in key, None for the client's address.
        key_function: The user's key function, if the rule has one.
        cost: The fixed cost, 1 where a function says it.
        cost_function: The user's cost function, if the rule has one.
        plain: Whether key and cost come without calling a function of the user's.
    """

    __slots__ = ("bucket", "cost", "cost_function", "key", "key_function", "plain", "rule")

    def __init__(self, rule: Rule, bucket: Bucket) -> None:
        self.rule = rule
        self.bucket = bucket
        self.key = rule.key if isinstance(rule.key, Key) else None
        self.key_function = None if isinstance(rule.key, Key) else rule.key
        self.cost = rule.cost if isinstance(rule.cost, int) else 1
        self.cost_function = None if isinstance(rule.cost, int) else rule.cost
        self.plain = self.key_function is None and self.cost_function is None

    def check(self, scope: Scope, limiter: Limiter, client_key: str) -> Check:
        """Say what to charge for a request, as far as no function of the user's is needed."""
        return self.bucket, client_key if self.key is None else self.key.find(scope, limiter, client_key), self.cost


class Selection(NamedTuple):
    """The gates on the way of a request, and whether all of them are plain."""

    gates: tuple[Gate, ...]
    plain: bool


class RuleSet:
    """Rules in their order, with the buckets they count in.

    Raises:
        ConfigurationError: Two rules have one name, or are the same without a name.
    """

    def __init__(self, rules: Sequence[Rule], limiter: Limiter) -> None:
        by_identity: dict[str, Rule] = {}
        self._gates: list[tuple[Rule, Gate | None]] = []
        taken: set[str] = set()
        for rule in rules:
            if not isinstance(rule, Rule):
                raise ConfigurationError(
                    f'rules: expected a list such as [Rule("*", "100/minute")], not {rule!r} in it'
                )
            twin = by_identity.setdefault(rule.identity, rule)
            if twin is not rule and not rule.exempt:
                raise ConfigurationError(f"rules: {twin!r} and {rule!r} are one bucket; name one of them, or drop it")
            self._gates.append((rule, None if rule.exempt else Gate(rule, _bucket(rule, limiter, taken))))
        self._known: dict[tuple[str, str, str], Selection] = {}
        self._always = self._select(("", "", "")) if all(rule.always for rule, _ in self._gates) else None

    def select(self, scope: Scope) -> Selection:
        """Return the gates on the way of a request, in their order."""
        if self._always is not None:
            return self._always
        asked = scope["type"], scope.get("method", "GET"), route_path(scope)
        return self._known.get(asked) or self._select(asked)

    def _select(self, asked: tuple[str, str, str]) -> Selection:
        found: list[Gate] = []
        for rule, gate in self._gates:
            if rule.matches(*asked):
                if gate is not None:
                    found.append(gate)
                if rule.final:
                    break
        selection = Selection(tuple(found), all(gate.plain for gate in found))
        if len(self._known) >= _MEMO:
            self._known.clear()
        # A path may be as long as the server lets it be; only ordinary ones are worth remembering.
        if len(asked[2]) <= _MEMO_PATH:
            self._known[asked] = selection
        return selection

    def names(self) -> set[str]:
        """Return the names that users gave to rules."""
        return {rule.name for rule, _ in self._gates if rule.name is not None}


def _bucket(rule: Rule, limiter: Limiter, taken: set[str]) -> Bucket:
    """Make the bucket of a rule, its limits called on the wire what no other rule's are."""
    names = []
    for name in wire_names(rule.label, rule.limits):
        names.append(unique_name(name, taken))
        taken.add(names[-1])
    # Unnamed rules of two middlewares are two buckets, even on one limiter; a name joins them.
    identity = rule.identity if rule.name is not None else limiter.claim(rule.identity)
    return Bucket(identity, rule.limits, names)


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, as the router at this place sees it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def _compile(path: object) -> Callable[[str], Any] | None:
    if path == "*":
        return None
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(f'path: expected "*" or a path such as "/items/{{id}}", not {path!r}')
    if "*" in path:
        raise ConfigurationError(
            f'path: {path!r} is not in Starlette\'s syntax; write "{path.partition("*")[0]}{{rest:path}}" for all below'
        )
    try:
        pattern, _, convertors = compile_path(path)
    except (AssertionError, ValueError) as error:
        raise ConfigurationError(f"path: {path!r} cannot be used: {error}") from None
    if convertors:
        return pattern.match
    return lambda asked: asked if asked == path else None


def _methods(methods: object) -> frozenset[str] | None:
    if methods is None:
        return None
    example = 'expected a list such as ["GET", "POST"]'
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ConfigurationError(f"methods: {example}, not {methods!r}")
    found = set()
    for method in methods:
        if not isinstance(method, str) or not (method.isascii() and method.isalpha()):
            raise ConfigurationError(f"methods: {example}, not {method!r} in it")
        found.add(method.upper())
    if not found:
        raise ConfigurationError(f"methods: {example}; leave it out for all methods")
    return frozenset(found | {"HEAD"} if "GET" in found else found)
