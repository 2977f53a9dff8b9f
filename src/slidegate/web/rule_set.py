"""The rules of one middleware: the set finds those that a request meets, and each says what it charges."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from starlette.types import Scope

from ..core.decision import Bucket, Check, unique_name, wire_names
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit, parse_limits
from ..core.logs import Throttle, logger
from ..core.memo import MAX_PATHS, PATH_BYTES, remember
from ..limiter import Limiter
from .keys import Key
from .matching import PathIndex, RequestPath
from .request import is_preflight
from .routes import Routes
from .rules import Limits, Rule, says_nobody

if TYPE_CHECKING:
    from .default_limits import DefaultLimits

_MEMO_PLANS: Final = 256
_PREFLIGHTS: Final = ":preflight"
"""The end of an identity whose counts are those of preflights."""
_IN_TURN: Final = "::"
"""Stands in an identity before its turn; no name has a colon."""
_ANY_PATH: Final = re.compile("")
_Indexed: TypeAlias = tuple[Callable[[str], object], int, str]
"""A path of a rule: what matches it, the place of the rule, and its text."""


class BoundRule:
    """A rule with its bucket: makes the check of a request.

    Attributes:
        rule: The rule.
        bucket: The owner of its counts, with the fixed limits.
        key: The built-in key, None for the client's address.
        key_function: The user's key function, if the rule has one.
        cost: The fixed cost; 1 where a function returns it.
        cost_function: The user's cost function, if the rule has one.
        permits: The owner of its permits, where the rule has a concurrency limit beside its limits.
        plain: Whether limits, key and cost need no call of a user's function, and no permit is held.
    """

    def __init__(self, rule: Rule, bucket: Bucket, permits: Bucket | None = None) -> None:
        self.rule = rule
        self.bucket = bucket
        self.key = rule.key if isinstance(rule.key, Key) else None
        self.key_function = None if isinstance(rule.key, Key) else rule.key
        self.cost = rule.cost if isinstance(rule.cost, int) else 1
        self.cost_function = None if isinstance(rule.cost, int) else rule.cost
        self.permits = permits
        functions = (self.key_function, self.cost_function, rule.limits_function)
        self.plain = all(function is None for function in functions) and rule.concurrency is None
        self._plans: dict[object, Bucket] = {}
        self._others: dict[tuple[Bucket, int], Bucket] = {}
        self._preflights: BoundRule | None = None

    def check(self, scope: Scope, limiter: Limiter, client_key: str) -> Check:
        """Return the check of a request, without calling functions of the user's."""
        return self.bucket, client_key if self.key is None else self.key.find(scope, limiter, client_key), self.cost

    def buckets(self) -> list[Bucket]:
        """Return the buckets of the rule; where a function returns its limits, that of its fall-back."""
        own = [self.bucket] if self.permits is None else [self.bucket, self.permits]
        apart = [] if self._preflights is None else self._preflights.buckets()
        return [*own, *self._others.values(), *apart]

    def fallbacks(self) -> list[Bucket]:
        """Return those of them that stand for the limits that a function returns."""
        own = [] if self.rule.limits_function is None else [self.bucket]
        return own if self._preflights is None else [*own, *self._preflights.fallbacks()]

    def uncharged(self, checks: Sequence[Check], asked: Sequence[Check]) -> list[Check]:
        """Leave out the checks of windows that have counted a request already, by the same key and limits.

        Where others of the same name have counted it under other limits, a check gets windows of its own, or one window
        would be charged twice.

        Args:
            checks: What the rule would charge.
            asked: What the same limiter was asked about the request before.
        """
        left = []
        for bucket, key, cost in checks:
            amounts = _amounts(bucket.limits)
            turn, own = 1, bucket
            while others := [_amounts(one.limits) for one, whose, _ in asked if one.rule == own.rule and whose == key]:
                if amounts in others:
                    break
                if all(amounts.keys().isdisjoint(other) for other in others):
                    others = []
                    break
                turn += 1
                own = self._in_turn(bucket, turn)
            if not others:
                left.append((own, key, cost))
        return left

    def _in_turn(self, bucket: Bucket, turn: int) -> Bucket:
        """Return a bucket with the same limits and windows of its own: the second of a name on a request, or later."""
        other = self._others.get((bucket, turn))
        if other is None:
            other = copy(bucket)
            other.rule += f"{_IN_TURN}{turn}"
            other.names = tuple([f"{name}-{turn}" for name in bucket.names])
            remember(self._others, (bucket, turn), other, _MEMO_PLANS)
        return other

    @property
    def identities(self) -> tuple[str, str]:
        """The owners of its counts, of preflights and of all other requests."""
        return self.bucket.rule, self.bucket.rule + _PREFLIGHTS

    def for_preflights(self) -> BoundRule:
        """Return the same rule with windows of its own, for CORS preflights: a browser sends them by itself."""
        if self._preflights is None:
            permits = None if self.permits is None else _apart(self.permits)
            self._preflights = BoundRule(self.rule, _apart(self.bucket), permits)
        return self._preflights

    def plan(self, limits: Limits) -> Bucket | None:
        """Return the bucket for the limits that a limits function returned; None for ``"unlimited"``.

        The bucket has no limits where nobody may pass.

        Raises:
            ConfigurationError: The limits cannot be read.
        """
        bucket = self._plans.get(limits) if isinstance(limits, (str, AnyLimit)) else None
        if bucket is None:
            if isinstance(limits, str) and limits.strip().lower() == "unlimited":
                return None
            if not isinstance(limits, (str, AnyLimit)) and isinstance(limits, Iterable):
                limits = tuple(limits)  # an iterator can be read only once
            parsed = () if says_nobody(limits) else parse_limits(limits)
            bucket = self._plans.get(parsed) or _make_bucket(self.rule, self.bucket.rule, parsed)
            for key in (parsed, limits) if isinstance(limits, (str, AnyLimit)) else (parsed,):
                remember(self._plans, key, bucket, _MEMO_PLANS)
        return bucket


class Met(NamedTuple):
    """A rule that a request meets, if its condition holds."""

    bound: BoundRule
    ends: bool
    """Whether it ends the list."""


class Selection(NamedTuple):
    """The rules that a request meets: those that limit it, whether they are all plain, those that only look on."""

    limiting: tuple[BoundRule, ...]
    plain: bool
    shadows: tuple[BoundRule, ...] = ()
    exempt: bool = False
    """Whether a rule says that nothing is counted here."""
    blocked: Rule | None = None
    """The rule that blocks the request; nothing limits it then."""
    open: tuple[Met, ...] = ()
    """The rules in their order, where conditions have to be asked first; then nothing else is known."""


class RuleSet:
    """Rules in their order, with the buckets they count in.

    Args:
        rules: The rules.
        claim: Returns a unique identity for that of a rule, as `Engine.claim` does.
        app: The application that the middleware guards; its mounts say what they make of a path.
        defaults: The limits behind all rules; they apply unless a final rule ends the list.

    Attributes:
        reserving: Rules with a `count_if`, by the identity of their bucket; they refund answers that are not counted.
        waits: Whether a rule lets requests wait.
        holds: Whether a rule has a concurrency limit.
        always: The selection of every request, where all requests meet the same rules.

    Raises:
        ConfigurationError: Two rules would count in one bucket: they have the same name, or are alike without one.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        claim: Callable[[str], str],
        app: object = None,
        defaults: DefaultLimits | None = None,
    ) -> None:
        check_apart(rules)
        taken: set[str] = set()
        self._bound = [BoundRule(rule, *_buckets(rule, claim, taken)) for rule in rules]
        counting = [bound for bound in self._bound if bound.rule.counts]
        self.reserving = {name: one.rule for one in counting if one.rule.count_if for name in one.identities}
        self.waits = any(rule.wait_us for rule in rules)
        self.holds = any(rule.concurrency is not None for rule in rules)
        self._slashed = any(path != "/" and path.endswith("/") for rule in rules for path in rule.paths)
        self._index = self._made_index()
        self._routes = Routes(app)
        self._throttle = Throttle()
        self._defaults = defaults
        self._known: dict[tuple[str, str, str, str], Selection] = {}
        self._version = 0
        self._selections: dict[object, Selection] = {}
        self.always: Selection | None = None
        if defaults is None and all(rule.always for rule in rules):
            self.always = self._select({"type": "http", "path": "/"})

    def _made_index(self) -> PathIndex[_Indexed]:
        index: PathIndex[_Indexed] = PathIndex()
        for place, bound in enumerate(self._bound):
            if not bound.rule.matchers:
                index.add(None, (_ANY_PATH.match, place, ""))
            for matcher in bound.rule.matchers:
                index.add((matcher.path, matcher.convertors), (matcher.limits.match, place, matcher.path))
        return index

    def select(self, scope: Scope) -> Selection:
        """Return the rules that a request meets, in their order.

        Where that fails, for example in a router of the user's, every limit counts the request, and nothing exempts it:
        a failure is no way past the limits.
        """
        if self.always is not None and not is_preflight(scope):
            return self.always
        try:
            return self._select(scope)
        except Exception as error:
            left_out = self._throttle.left_out(type(error), time.monotonic())
            if left_out is not None:
                logger.exception(
                    "the rules of a request cannot be told, so every limit counts it (suppressed=%d)", left_out
                )
            met, _ = self._met(range(len(self._bound)), scope, None)
            return self._selected(met, () if self._defaults is None else self._defaults.anywhere(), scope)

    def _select(self, scope: Scope) -> Selection:
        routes = self._routes
        if routes.router is None:
            routes = routes.seen_by(scope)
        version = routes.current()
        if version != self._version:
            self._version = version
            self._known.clear()
        method = "a preflight" if is_preflight(scope) else scope.get("method", "GET")
        request = scope["type"], method, scope["path"], scope.get("root_path", "")
        selection = self._known.get(request)
        if selection is not None:
            return selection
        selection = self._find(scope, routes)
        return remember(self._known, request, selection, MAX_PATHS, PATH_BYTES) if routes.by_path else selection

    def _find(self, scope: Scope, routes: Routes) -> Selection:
        path = RequestPath(scope, routes, slashed=self._slashed)
        places: set[int] = set()
        if path.anything:
            places |= {place for place, bound in enumerate(self._bound) if bound.rule.action != "track"}
        for text, begin, end in path.texts:
            # One comprehension first: where no text tells rules apart, most of them do not match.
            for _, place, written in [indexed for indexed in self._index.find(text) if indexed[0](text)]:
                if written.startswith(begin) and written.endswith(end):
                    places.add(place)
        met, ended = self._met(places, scope, path)
        defaults = () if self._defaults is None or ended else self._defaults.find(scope, routes)
        return self._selected(met, defaults, scope)

    def _met(
        self, places: Iterable[int], scope: Scope, path: RequestPath | None
    ) -> tuple[list[tuple[int, bool]], bool]:
        """Return which of some rules a request meets, and whether one of them surely ends the list.

        Args:
            places: The places of the rules whose paths match.
            scope: The scope of the request.
            path: Its path; None where that is not known, and nothing exempts the request.

        Returns:
            The place of each rule, and whether it ends the list.
        """
        kind, method = scope["type"], scope.get("method", "GET")
        met = []
        for place in sorted(places):
            rule = self._bound[place].rule
            counts = not rule.exempt and limits_kind(rule, kind, method)
            ends = counts if rule.blocks else rule.final and path is not None and exempts(rule, kind, method, path)
            if counts or ends:
                met.append((place, ends))
            if ends and not rule.conditional:
                return met, True
        return met, False

    def _selected(self, rules: Iterable[tuple[int, bool]], defaults: Sequence[BoundRule], scope: Scope) -> Selection:
        """Return the selection of some rules and the limits behind them; it is the same for all such requests."""
        key = tuple(rules), tuple(defaults), is_preflight(scope)
        selection = self._selections.get(key)
        if selection is not None:
            return selection
        bound_rules = [(self._bound[place], ends) for place, ends in key[0]]
        bound_rules += [(bound, False) for bound in defaults]
        met = [Met(bound.for_preflights() if key[2] else bound, ends) for bound, ends in bound_rules]
        if any(bound.rule.conditional for bound, _ in met):
            return remember(self._selections, key, Selection((), plain=False, open=tuple(met)))
        return remember(self._selections, key, chosen(met))

    def bound(self) -> list[BoundRule]:
        """Return the rules that count, in their order, and the defaults that a request has met."""
        counting = [bound for bound in self._bound if bound.rule.counts]
        return counting if self._defaults is None else [*counting, *self._defaults.met()]

    def names(self) -> set[str]:
        """Return the names that users gave to rules."""
        return {bound.rule.name for bound in self._bound if bound.rule.name is not None}


def limits_kind(rule: Rule, kind: str, method: str) -> bool:
    """Return whether a limit holds requests of a type and a method, in whatever case the method is sent."""
    methods = rule.methods
    if methods is not None and method not in methods and method.lower().upper() not in methods:
        return False
    return rule.connection is None or kind == rule.connection


def exempts(rule: Rule, kind: str, method: str, path: RequestPath) -> bool:
    """Return whether an exempt or final rule ends the list for a request: every text of its path must match."""
    if rule.methods is not None and method not in rule.methods:
        return False
    if rule.connection is not None and kind != rule.connection:
        return False
    if not rule.matchers:
        return True
    return not path.anything and all(any(matcher.exempts(text) for matcher in rule.matchers) for text in path.strict)


def chosen(met: Sequence[Met]) -> Selection:
    """Return the selection that some rules make, in their order."""
    counting: list[BoundRule] = []
    last: Rule | None = None
    for bound, ends in met:
        if bound.rule.counts:
            counting.append(bound)
        if ends:
            last = bound.rule
            break
    blocked = last if last is not None and last.blocks else None
    limiting = tuple(bound for bound in counting if bound.rule.action == "limit") if blocked is None else ()
    shadows = tuple(bound for bound in counting if bound.rule.action != "limit")
    plain = blocked is None and all(bound.plain for bound in limiting)
    return Selection(limiting, plain, shadows, exempt=last is not None and last.exempt, blocked=blocked)


def all_rules(limits: str | AnyLimit | Iterable[str | AnyLimit] | None, rules: Sequence[Rule] | None) -> Sequence[Rule]:
    """Return the rules of a middleware: those that are given, one of its limits, or none beside limits at endpoints."""
    if rules is None:
        return [] if limits is None else [Rule("*", limits)]
    if limits is not None:
        raise ConfigurationError(
            'RateLimitMiddleware: give limits="100/minute", which is Rule("*", ...), or rules=[...], not both'
        )
    if isinstance(rules, (str, Rule)) or not isinstance(rules, Iterable):
        raise ConfigurationError(f'rules: expected a list such as [Rule("*", "100/minute")], not {quoted(rules)}')
    return tuple(rules)


def check_apart(rules: Iterable[Rule]) -> None:
    """Check that no two rules would count in one bucket."""
    by_identity: dict[str, Rule] = {}
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigurationError(
                f'rules: expected a list such as [Rule("*", "100/minute")], not {quoted(rule)} in it'
            )
        twin = by_identity.get(rule.identity)
        by_identity[rule.identity] = rule
        if twin is None or not rule.counts:
            continue
        advice = "name one of them, or drop it"
        if rule.name is not None:
            paths = "*" if "*" in twin.paths + rule.paths else list(dict.fromkeys(twin.paths + rule.paths))
            advice = f"write one rule with the paths {quoted(paths)}, or give one of them another name"
        raise ConfigurationError(f"rules: {twin!r} and {rule!r} are one bucket; {advice}")


def check_names(rules: Iterable[tuple[Rule, str]]) -> None:
    """Check that all of one name have the same limits, where these are known before a request.

    Args:
        rules: The rules and the limits at endpoints that ask one limiter, each with where it stands.

    Raises:
        ConfigurationError: Two of them have not.
    """
    named: dict[str, tuple[Rule, str]] = {}
    for rule, where in rules:
        if rule.name is None or not rule.counts or rule.limits_function is not None:
            continue
        twin, there = named.setdefault(rule.identity, (rule, where))
        if _amounts(rule.all_limits) != _amounts(twin.all_limits):
            theirs, own = ("; ".join(map(str, one.all_limits)) for one in (twin, rule))
            raise ConfigurationError(
                f"name: {rule.name!r} is {quoted(theirs)} {there} and {quoted(own)} {where}, and one name is one "
                f"bucket; write the same limits, or another name, for example name={quoted(f'{rule.name}-2')}"
            )


def _buckets(rule: Rule, claim: Callable[[str], str], taken: set[str]) -> Sequence[Bucket]:
    """Make the buckets of a rule; its limits get names in header fields that no other rule's limits have."""
    if not rule.counts:
        return [Bucket(rule.identity, ())]
    names = []
    for name in rule.wire_names():
        names.append(unique_name(name, taken))
        taken.add(names[-1])
    # Unnamed rules of two middlewares count apart, even on one limiter; a name joins their counts.
    identity = rule.identity if rule.name is not None else claim(rule.identity)
    return buckets_of(rule, identity, names)


def buckets_of(rule: Rule, identity: str, names: Sequence[str]) -> Sequence[Bucket]:
    """Make the bucket of a rule's limits and that of its permits, those of them that it has.

    Args:
        rule: The rule.
        identity: The identity of its counts.
        names: The names in header fields, those that `Rule.wire_names` returns or others.
    """
    buckets = []
    if rule.limits or rule.limits_function is not None:
        buckets.append(_make_bucket(rule, identity, rule.limits, names[: len(rule.limits)]))
    if rule.concurrency is not None:
        wait_us, wait_max = rule.wait_us, rule.wait_max
        buckets.append(
            Bucket(identity, (rule.concurrency,), names[-1:], wait_us=wait_us, wait_max=wait_max, label=rule.label)
        )
    return buckets


def name_of(identity: str) -> str:
    """Return the identity that counts of one name have, whatever their turn on a request."""
    return identity.partition(_IN_TURN)[0]


def _amounts(limits: Iterable[AnyLimit]) -> dict[object, int]:
    """Return the amounts of limits by their windows."""
    return {limit.same_window: limit.amount for limit in limits}


def _apart(bucket: Bucket) -> Bucket:
    """Return a bucket with the same limits and windows of its own."""
    twin = copy(bucket)
    twin.rule += _PREFLIGHTS
    return twin


def _make_bucket(rule: Rule, identity: str, limits: Sequence[AnyLimit], names: Sequence[str] | None = None) -> Bucket:
    return Bucket(
        identity,
        limits,
        names if names is not None else wire_names(rule.label, limits),
        # Tracking counts everything, or a hot key would cool down while it is hot.
        count_denied=rule.count_denied or rule.action == "track",
        wait_us=rule.wait_us,
        wait_max=rule.wait_max,
        unit=rule.unit,
        label=rule.label,
    )
