"""The rules of one middleware: `RuleSet` finds those that match a request, and each returns the check to charge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from ..core.decision import Bucket, Check, unique_name
from ..core.limits import AnyLimit, parse_limits
from ..core.logs import Throttle, logger
from ..core.memo import MAX_PATHS, PATH_BYTES, remember
from ..limiter import Limiter
from .buckets import IN_TURN, amounts_by_window, buckets_of, make_bucket, named_limits
from .exchange import is_preflight
from .keys import Key, everyone, parts_of
from .path_params import PathParam, PathParameters
from .paths import PathIndex, PathReader, RequestTexts, path_below
from .rule_list import check_apart
from .rules import Limits, Rule, says_nobody

if TYPE_CHECKING:
    from .default_limits import DefaultLimits

_MEMO_PLANS: Final = 256
_PREFLIGHTS: Final = ":preflight"
"""The suffix of an identity that counts preflights."""


class BoundRule:
    """A rule with its buckets: creates the checks of requests.

    Attributes:
        rule: The rule.
        bucket: The owner of its counts, with the fixed limits.
        key: The built-in key, None for the client's address.
        key_function: The user's key function, if the rule has one.
        cost: The fixed cost; 1 if a function returns it.
        cost_function: The user's cost function, if the rule has one.
        permits: The owner of its permits, if the rule has a concurrency limit in addition to limits.
        plain: Whether condition, limits, key and cost need no call of a user's function, no permit is held, and no
            request waits.
        named: The limits by their names in header fields; operators can change them while this object exists.
    """

    def __init__(self, rule: Rule, bucket: Bucket, permits: Bucket | None = None) -> None:
        self.rule = rule
        self.bucket = bucket
        self.key = rule.key if isinstance(rule.key, Key) else None
        self.key_function = None if isinstance(rule.key, Key) else rule.key
        self.cost = rule.cost if isinstance(rule.cost, int) else 1
        self.cost_function = None if isinstance(rule.cost, int) else rule.cost
        self.permits = permits
        self.named = named_limits(rule, [bucket] if permits is None else [bucket, permits]) if rule.counts else []
        functions = (self.key_function, self.cost_function, rule.limits_function, rule.when)
        self.plain = all(function is None for function in functions) and not (rule.concurrency or rule.wait_us)
        self._parameters: PathParameters | None = None
        self._plans: dict[object, Bucket] = {}
        self._others: dict[tuple[Bucket, int], Bucket] = {}
        self._preflights: BoundRule | None = None

    def fallbacks(self) -> list[Bucket]:
        """Return the buckets whose limits apply only if the limits function fails."""
        return [] if self.rule.limits_function is None else [one for one in self.buckets() if not one.is_permit]

    def check(self, scope: Scope, limiter: Limiter, client_key: str) -> Check:
        """Return the check of a request, without calling the user's functions."""
        key = client_key if self.key is None else self.key.find(self.routed(scope), limiter, client_key)
        return self.bucket, key, self.cost

    def read_parameters(self, reader: PathReader) -> None:
        """Read the path parameters by which the rule counts from the paths of requests, which are not routed yet."""
        parts = [part for key in (self.rule.key, self.rule.fair) for part in parts_of(key)]
        names = {part.name for part in parts if isinstance(part, PathParam)}
        if names:
            self._parameters = PathParameters(names, self.rule.rule_paths, reader)

    def routed(self, scope: Scope) -> Scope:
        """Return the scope of a request with the path parameters by which the rule counts."""
        return scope if self._parameters is None else self._parameters.routed(scope)

    def buckets(self) -> list[Bucket]:
        """Return the buckets of the rule; if a function returns its limits, that of the fallback limits."""
        own = [self.bucket] if self.permits is None else [self.bucket, self.permits]
        apart = [] if self._preflights is None else self._preflights.buckets()
        return [*own, *self._others.values(), *apart]

    def uncharged(self, checks: Sequence[Check], asked: Sequence[Check]) -> list[Check]:
        """Return the checks without those whose windows have already counted the request by the same key and limits.

        If a rule of the same name has counted the request under different limits, a check gets separate windows;
        otherwise one window would be charged twice.

        Args:
            checks: The checks of the rule.
            asked: The earlier checks of this request by the same limiter.
        """
        left = []
        for bucket, key, cost in checks:
            amounts = amounts_by_window(bucket.limits)
            for turn in count(1):
                own = self._in_turn(bucket, turn)
                others = [
                    amounts_by_window(one.limits) for one, whose, _ in asked if one.name == own.name and whose == key
                ]
                if amounts in others:
                    break
                if all(amounts.keys().isdisjoint(other) for other in others):
                    left.append((own, key, cost))
                    break
        return left

    def _in_turn(self, bucket: Bucket, turn: int) -> Bucket:
        """Return a bucket for turn 1; for later turns a copy with the same limits and separate windows."""
        other = bucket if turn == 1 else self._others.get((bucket, turn))
        if other is None:
            other = bucket.under(f"{bucket.name}{IN_TURN}{turn}", [f"{name}-{turn}" for name in bucket.names])
            remember(self._others, (bucket, turn), other, _MEMO_PLANS)
        return other

    @property
    def identities(self) -> tuple[str, str]:
        """The owners of its counts: of ordinary requests, and of preflights."""
        return self.bucket.name, self.bucket.name + _PREFLIGHTS

    def for_preflights(self) -> BoundRule:
        """Return the same rule with separate windows for CORS preflights, which browsers send on their own."""
        if self._preflights is None:
            bucket, permits = self.bucket, self.permits
            own = None if permits is None else permits.under(permits.name + _PREFLIGHTS)
            apart = BoundRule(self.rule, bucket.under(bucket.name + _PREFLIGHTS), own)
            apart._parameters = self._parameters
            self._preflights = apart
        return self._preflights

    def plan(self, limits: Limits) -> Bucket | None:
        """Return the bucket for the limits that a limits function returned; None for ``"unlimited"``.

        The bucket has no limits if no request may pass.

        Raises:
            ConfigurationError: The limits cannot be parsed.
        """
        bucket = self._plans.get(limits) if isinstance(limits, (str, AnyLimit)) else None
        if bucket is None:
            if isinstance(limits, str) and limits.strip().lower() == "unlimited":
                return None
            if not isinstance(limits, (str, AnyLimit)) and isinstance(limits, Iterable):
                limits = tuple(limits)  # an iterator can be consumed only once
            parsed = () if says_nobody(limits) else parse_limits(limits)
            bucket = self._plans.get(parsed) or make_bucket(self.rule, self.bucket.name, parsed)
            for key in (parsed, limits) if isinstance(limits, (str, AnyLimit)) else (parsed,):
                remember(self._plans, key, bucket, _MEMO_PLANS)
        return bucket


@dataclass(eq=False)
class Matched:
    """The rules that match a request. Compared by identity.

    Attributes:
        limiting: The rules that limit it.
        plain: Whether no rule calls a user's function, holds a permit or lets requests wait, and there is no shadow
            rule.
        shadows: The shadow rules.
        told: The limiting rules with an `on_exceeded` function.
        exempt: Whether a rule exempts the request from counting.
        blocked: The rule that blocks the request; `limiting` is empty then.
        conditions: If a rule has a condition: all rules in order, each with whether it ends the list. The other
            attributes are empty until the conditions are evaluated.
        by_client: Whether all requests of one client that match these rules have the same checks.
    """

    limiting: tuple[BoundRule, ...] = ()
    plain: bool = True
    shadows: tuple[BoundRule, ...] = ()
    told: tuple[BoundRule, ...] = ()
    exempt: bool = False
    blocked: Rule | None = None
    conditions: tuple[tuple[BoundRule, bool], ...] = ()
    by_client: bool = field(init=False)

    def __post_init__(self) -> None:
        self.by_client = self.plain and all(bound.key is None or bound.key is everyone for bound in self.limiting)


class RuleSet:
    """Rules in their order, with the buckets they count in.

    Args:
        rules: The rules.
        unique_id: Makes the identity of a rule unique, as `Engine.unique_id` does.
        paths: Reads the paths of requests as the guarded application does.
        defaults: The `default_limits`, which apply after all rules unless a final rule ends the list.

    Attributes:
        reserving: Rules with a `count_if`, by the identity of their bucket; they refund responses that do not count.
        waits: Whether a rule lets requests wait.
        holds: Whether a rule has a concurrency limit.
        always: The match of every request if all requests match the same rules; else None.

    Raises:
        ConfigurationError: Two rules would share a bucket: they have the same name, or are equal and unnamed.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        unique_id: Callable[[str], str],
        paths: PathReader,
        defaults: DefaultLimits | None = None,
    ) -> None:
        check_apart(rules)
        self._paths = paths
        # Shadow rules appear in no header field, so they choose their names last.
        taken: set[str] = set()
        names = {id(rule): _names(rule, taken) for rule in sorted(rules, key=lambda rule: rule.action == "shadow")}
        self._bound = [BoundRule(rule, *_buckets(rule, unique_id, names[id(rule)])) for rule in rules]
        for bound in self._bound:
            bound.read_parameters(self._paths)
        self.reserving = {name: one.rule for one in self._bound if one.rule.count_if for name in one.identities}
        self.waits = any(rule.wait_us for rule in rules)
        self.holds = any(rule.concurrency is not None for rule in rules)
        self._index = PathIndex([(path, index) for index, rule in enumerate(rules) for path in rule.rule_paths])
        self._anywhere = {index for index, rule in enumerate(rules) if not rule.rule_paths}
        self._throttle = Throttle()
        self._defaults = defaults
        self._known: dict[tuple[str, str, str, str], Matched] = {}
        self._alike: dict[object, Matched] = {}
        self.always: Matched | None = None
        if defaults is None and all(rule.always for rule in rules):
            self.always = self.match({"type": "http", "path": "/"})

    def match(self, scope: Scope) -> Matched:
        """Return the rules that match a request, in order.

        If that fails, every limit counts the request and nothing exempts it, so that a failure bypasses no limit.
        """
        preflight = scope.get("method") == "OPTIONS" and is_preflight(scope)
        if self.always is not None and not preflight:
            return self.always
        method = "a preflight" if preflight else scope.get("method", "GET")
        request = scope["type"], method, scope["path"], scope.get("root_path", "")
        try:
            matched = self._known.get(request)
            if matched is not None:
                return matched
            known = True
            defaults: Sequence[BoundRule] = ()
            met, ended = self._met(scope, self._paths.texts(scope))
            if self._defaults is not None and not ended:
                defaults, routed = self._defaults.find(scope)
                known = routed and self._paths.application(scope).by_path  # a route may be added later
        except Exception as error:
            left_out = self._throttle.left_out(type(error), time.monotonic())
            if left_out is not None:
                logger.exception("selecting rules failed; every limit counts the request (suppressed=%d)", left_out)
            met, known = self._met(scope, RequestTexts(any=True))[0], False
            defaults = () if self._defaults is None else self._defaults.anywhere()
        matched = self._matched(met, defaults, preflight=preflight)
        return remember(self._known, request, matched, MAX_PATHS, PATH_BYTES) if known else matched

    def _met(self, scope: Scope, texts: RequestTexts) -> tuple[list[tuple[int, bool]], bool]:
        """Return the indexes of matching rules, each with whether it ends the list, and whether one certainly does."""
        indexes: Iterable[int] = range(len(self._bound))
        if not texts.any:
            indexes = sorted({*self._anywhere, *self._index.find(texts)})
        kind, method = scope["type"], scope.get("method", "GET")
        met = []
        for index in indexes:
            rule = self._bound[index].rule
            counts = not rule.exempt and limits_kind(rule, kind, method)
            ends = counts if rule.blocks else rule.final and _exempts(rule, kind, method, texts)
            if counts or ends:
                met.append((index, ends))
            if ends and rule.when is None:
                return met, True
        return met, False

    def _matched(self, rules: Iterable[tuple[int, bool]], defaults: Sequence[BoundRule], *, preflight: bool) -> Matched:
        """Return one object for all requests that match the same rules."""
        key = tuple(rules), tuple(defaults), preflight
        matched = self._alike.get(key)
        if matched is not None:
            return matched
        met = [(self._bound[index], ends) for index, ends in key[0]] + [(bound, False) for bound in defaults]
        met = [(bound.for_preflights() if preflight else bound, ends) for bound, ends in met]
        if any(bound.rule.when is not None for bound, _ in met):
            return remember(self._alike, key, Matched(plain=False, conditions=tuple(met)))
        return remember(self._alike, key, chosen(met))

    def bound(self) -> list[BoundRule]:
        """Return the counting rules in order, then the default limits of the routes that were requested so far."""
        counting = [bound for bound in self._bound if bound.rule.counts]
        return counting if self._defaults is None else [*counting, *self._defaults.bound()]

    def names(self) -> set[str]:
        """Return the names that users gave to rules."""
        return {bound.rule.name for bound in self._bound if bound.rule.name is not None}


def limits_kind(rule: Rule, kind: str, method: object) -> bool:
    """Return whether a limit applies to a connection type and a method; the case of the method is ignored.

    A method that is not text may be any method.
    """
    methods = rule.methods
    if methods is not None and isinstance(method, str):
        known = method if method in methods else method.lower().upper()
        if known not in methods:
            return False
    return rule.connection is None or kind == rule.connection


def _exempts(rule: Rule, kind: str, method: object, texts: RequestTexts) -> bool:
    """Return whether an exempt or final rule ends the list for a request: every text of its path must match."""
    if rule.methods is not None and not (isinstance(method, str) and method in rule.methods):
        return False
    if rule.connection is not None and kind != rule.connection:
        return False
    if not rule.rule_paths:
        return True
    return not texts.any and all(
        any(below is not None and below.is_exactly(text) for below in (path_below(mounts, one) for one in rule.paths))
        for mounts, text in texts.exact
    )


def chosen(met: Iterable[tuple[BoundRule, bool]]) -> Matched:
    """Return the match for rules in order, each given with whether it ends the list."""
    counting: list[BoundRule] = []
    last: Rule | None = None
    for bound, ends in met:
        if bound.rule.counts:
            counting.append(bound)
        if ends:
            last = bound.rule
    blocked = last if last is not None and last.blocks else None
    limiting = tuple(bound for bound in counting if bound.rule.action == "limit") if blocked is None else ()
    shadows = tuple(bound for bound in counting if bound.rule.action != "limit")
    told = tuple(bound for bound in limiting if bound.rule.on_exceeded is not None)
    plain = not (shadows or told) and all(bound.plain for bound in limiting)
    return Matched(limiting, plain, shadows, told, exempt=last is not None and last.exempt, blocked=blocked)


def _names(rule: Rule, taken: set[str]) -> list[str]:
    """Return unique names of a rule's limits for header fields, and add them to `taken`."""
    names = []
    for name in rule.wire_names() if rule.counts else ():
        names.append(unique_name(name, taken))
        taken.add(names[-1])
    return names


def _buckets(rule: Rule, unique_id: Callable[[str], str], names: Sequence[str]) -> Sequence[Bucket]:
    """Return the buckets of a rule, with the names of its limits in header fields."""
    if not rule.counts:
        return [Bucket(rule.identity, ())]
    # Unnamed rules of two middlewares count separately, even on one limiter; rules of one name share their counts.
    identity = rule.identity if rule.name is not None else unique_id(rule.identity)
    return buckets_of(rule, identity, names)
