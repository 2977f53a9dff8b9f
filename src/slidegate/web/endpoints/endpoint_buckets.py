"""The buckets of limits at endpoints: one for each route that a limit stands on, or one for all routes below it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from hashlib import blake2b
from inspect import isclass
from typing import Any, Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ...core.decision import Decision, unique_name
from ..callbacks import UserCallbacks
from ..routes import ResolvedRoute, RouteIndex
from ..rule_set import BoundRule, buckets_of
from .decorator import EndpointLimit, layers
from .exemption import is_lifted

DecideAt: TypeAlias = Callable[[BoundRule, HTTPConnection], Awaitable[Decision | None]]

_MEMO: Final = 4_096
_METHODS: Final = frozenset({"get", "head", "post", "put", "patch", "delete", "options"})
"""How the methods of a class such as `HTTPEndpoint` are called that answer requests."""


class EndpointBuckets:
    """The limits at the endpoints below one middleware, each with its buckets.

    Args:
        claimed: An identity that no other middleware on the limiter has.
        decide: Decides about the limit of one bucket for a request.
        calls: Calls the `count_if` functions.
        price: Learns what a request costs under each limit.
    """

    def __init__(
        self, claimed: str, decide: DecideAt, calls: UserCallbacks, price: Callable[[BoundRule], None]
    ) -> None:
        self._claimed = claimed
        self.decide = decide
        self.calls = calls
        self._price = price
        self._places = RouteIndex()
        self._bound: dict[tuple[EndpointLimit, ResolvedRoute | str, int, int], tuple[BoundRule | None, object]] = {}
        self._names: dict[ResolvedRoute | str, dict[str, str]] = {}

    def place(self, scope: Scope) -> ResolvedRoute | None:
        """Return the place that a request came by, if it is known."""
        return self._places.find(scope)

    def met(self) -> list[BoundRule]:
        """Return the limits that were met so far, with their buckets; one whose windows several share stands once."""
        return list({bound.bucket.rule: bound for bound, _ in list(self._bound.values()) if bound}.values())

    def names(self) -> set[str]:
        """Return the names that users gave to limits that were met so far."""
        return {limit.rule.name for limit, *_ in list(self._bound) if limit.rule.name is not None}

    def bound(self, limit: EndpointLimit, scope: Scope, endpoint: object, turn: int = 0) -> BoundRule | None:
        """Return what `limit` charges for a request that came by the place of `scope`; None where it is lifted.

        Args:
            limit: The limit.
            scope: The request's.
            endpoint: The function that is limited, if it is not the endpoint of a route.
            turn: How many other limits that look the same have charged this request before.
        """
        place: ResolvedRoute | str | None = self._places.find(scope)
        if place is None:
            function = endpoint or scope.get("endpoint") or limit
            place = _name_of(function)
        known = self._bound.get((limit, place, turn, id(endpoint)))
        return self._make(limit, place, scope, endpoint, turn) if known is None else known[0]

    def _make(
        self, limit: EndpointLimit, place: ResolvedRoute | str, scope: Scope, endpoint: object, turn: int
    ) -> BoundRule | None:
        if len(self._bound) >= _MEMO:
            # Objects made on the way of a request; the buckets they stand for stay.
            self._bound.clear()
            self._names.clear()
        lifted = endpoint is None and isinstance(place, ResolvedRoute) and is_lifted(limit, place)
        bound = None if lifted else self._bind(limit, place, scope, endpoint, turn)
        # The function is kept as well: the id of one that is gone may be given to another.
        self._bound[limit, place, turn, id(endpoint)] = bound, endpoint
        return bound

    def _bind(
        self, limit: EndpointLimit, place: ResolvedRoute | str, scope: Scope, endpoint: object, turn: int
    ) -> BoundRule:
        labels = [place] if isinstance(place, str) else _labels(place, endpoint)
        rule = copy(limit.rule)
        path = labels[0]
        for required in place.above if isinstance(place, ResolvedRoute) else ():
            if required.dependency is limit:
                path = f"{required.where}/*"
                labels = sorted(below.label for below in self._places.below(scope, limit))
                break
        rule.paths = (path.encode("ascii", "backslashreplace").decode(),)
        facts = self._claimed, limit.rule.identity, labels
        digest = blake2b(repr(facts).encode(), digest_size=8).hexdigest()
        identity = f"{rule.label[:32]}:{digest}" + (f"#{turn + 1}" if turn else "")
        if rule.name is not None:
            identity = rule.identity
        # Names have to differ on one response only, where limits are asked in the same order in every process.
        taken = self._names.setdefault(place, {})
        others = [name for name, owner in taken.items() if owner != identity]
        names = [unique_name(name, others) for name in rule.wire_names()]
        taken.update(dict.fromkeys(names, identity))
        bound = BoundRule(rule, *buckets_of(rule, identity, names))
        self._price(bound)
        return bound


def _labels(place: ResolvedRoute, endpoint: object) -> list[str]:
    """Say what a limit is on, for people first: a route, or a function on the way of its requests."""
    if endpoint is None or any(layer is endpoint for layer in layers(place.route.endpoint)):
        return [place.label]
    name = getattr(endpoint, "__name__", type(endpoint).__name__)
    if isclass(place.route.endpoint) and place.connection == "http" and name in _METHODS:
        return [f"{name.upper()} {place.template}", _name_of(endpoint)]
    return [f"{place.label} {name}", _name_of(endpoint)]


def _name_of(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
