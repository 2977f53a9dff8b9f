"""Limits for each route: a bucket for each template and its methods, one for all paths that no route serves.

The routers are asked which route a request reaches, so the bucket belongs to the route and never to the spelling of a
path. An odd path has several readings, and something before the routers may take it for any of them: the routes of all
readings count the request, and the first that is spent refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from hashlib import blake2b
from typing import Final

from starlette.types import Scope

from ..core.decision import Bucket, unique_name, wire_names
from ..core.errors import ConfigurationError
from ..core.limits import AnyLimit, parse_limits
from .decorators import takes_no_defaults
from .matching import MAX_ODD, below, is_odd, readings
from .route_tree import methods_of
from .routes import Reached, Routes
from .rule_set import BoundRule
from .rules import Rule

_MEMO: Final = 4_096
_MAX_READINGS: Final = 16
"""The largest number of readings that are asked beside the path itself: each costs another look at all routes."""
_CONVERTOR: Final = r":\w+\}"
_NO_ROUTE: Final = "*"


class DefaultLimits:
    """The limits for each route below a middleware.

    Args:
        limits: The limits, each route by itself.
        claimed: An identity that no other middleware on the limiter has.

    Attributes:
        limits: The limits, read.

    Raises:
        ConfigurationError: The limits cannot be read.
    """

    def __init__(self, limits: str | AnyLimit | Iterable[str | AnyLimit], claimed: str) -> None:
        if callable(limits):
            raise ConfigurationError(
                f'default_limits: expected limits such as "60/minute", not the function {limits!r}; limits by '
                "request stand in a rule or at an endpoint"
            )
        try:
            self.limits = parse_limits(limits)
        except ConfigurationError as error:
            raise ConfigurationError(f"default_limits: {error}") from None
        self._rule = Rule("*", self.limits)
        self._claimed = claimed
        self._bound: dict[str, BoundRule] = {}
        self._labels: dict[str, str] = {}

    def met(self) -> list[BoundRule]:
        """Return the buckets of the routes that a request has met so far."""
        return list(self._bound.values())

    def find(self, scope: Scope, routes: Routes) -> Sequence[BoundRule]:
        """Return the buckets of a request: none only where all readings of its path lead to exempt routes."""
        reached = self._reached(scope, routes)
        method = scope.get("method", "")
        counting = [_named(one) for one in reached if one is not None and not _is_exempt(one, method)]
        if not counting and None in reached:
            return self.anywhere()
        return [self._bound.get(name) or self._bind(name) for name in dict.fromkeys(counting)]

    def anywhere(self) -> Sequence[BoundRule]:
        """Return the bucket of requests that reach no route that is known."""
        return [self._bound.get(_NO_ROUTE) or self._bind(_NO_ROUTE)]

    def _reached(self, scope: Scope, routes: Routes) -> list[Reached | None]:
        """Return the ends of all ways that a request may take; None stands for no route."""
        path: str = scope["path"]
        reached = [routes.reach(scope)]
        first = reached[0]
        odd = is_odd(path)
        if odd and len(path) > MAX_ODD:
            # Its readings are not worked out. It may mean any path, so no exemption holds for it.
            return [*reached, None]
        if not odd and first is not None and (first.sure or path[-1:] != "/"):
            return reached
        texts = list(_readings(scope, routes.root))
        # A slash at the end: routers redirect there or back, and a middleware may rewrite it so.
        slashless = {text.rstrip("/") or "/" for text in texts if text[-1:] == "/"}
        texts += slashless
        others = list(dict.fromkeys(texts if first is not None else [*texts, f"{path}/"]))
        others = [text for text in others if text != path]
        if len(others) > _MAX_READINGS:
            # No honest client sends such a path. The last reading is the one of whoever tidies up everything.
            others = [*others[: _MAX_READINGS - 1], others[-1]]
            reached.append(None)
        for text in others:
            end = routes.reach({**scope, "path": text})
            # Where nothing answers without the slash but a redirect, that is no route of its own.
            if end is not None or text not in slashless:
                reached.append(end)
        return reached

    def _bind(self, name: str) -> BoundRule:
        """Make the bucket of a route."""
        if len(self._bound) >= _MEMO:
            # Routes that came and went; the buckets they stand for stay.
            self._bound.clear()
            self._labels.clear()
        rule = copy(self._rule)
        rule.paths = (f"per-route {re.sub(_CONVERTOR, '}', name)}",)
        digest = blake2b(repr((self._claimed, name)).encode(), digest_size=8).hexdigest()
        # Two names may be alike where they are shortened.
        label = unique_name(rule.label, self._labels)
        self._labels[label] = name
        bucket = Bucket(f"{label[:32]}:{digest}", rule.limits, wire_names(label, rule.limits), label=label)
        bound = self._bound[name] = BoundRule(rule, bucket)
        return bound


def _readings(scope: Scope, own_root: str) -> Iterator[str]:
    """Yield the readings of a path, with the root that comes before it and without."""
    path = scope["path"]
    yield from readings(path)
    for root in {scope.get("root_path", ""), own_root} - {""}:
        rest = below(root, path)
        yield from (root + text for text in readings(rest) if rest != path)


def _is_exempt(reached: Reached, method: str) -> bool:
    """Return whether the endpoint that a request reaches takes no defaults; an answer of 405 is no endpoint's."""
    return reached.answers and takes_no_defaults(reached.route, reached.end, method)


def _named(reached: Reached) -> str:
    return f"{'*' if reached.route is None else methods_of(reached.route)} {reached.written}"
