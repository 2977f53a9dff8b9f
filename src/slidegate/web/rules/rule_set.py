"""The rules of one gate: the set finds those that a request meets, and each says what it charges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Final, NamedTuple

from starlette.types import Scope

from ...core.decision import Bucket, Check, unique_name, wire_names
from ...core.errors import ConfigurationError
from ...core.limits import Limit, parse_limits
from ...core.memo import remember
from ...limiter import Limiter
from ..keys.key import Key
from ..keys.path_param import read_at
from ..paths.below_root import route_path
from ..paths.tree import Tree, declares
from .arguments import says_nobody
from .matching import Sight
from .rule import Limits, Rule
from .tracking import HotWatch

_MEMO: Final = 2_048
_MEMO_PATH: Final = 256
_MEMO_PLANS: Final = 256


class BoundRule:
    """A rule with its bucket: makes the check of a request.

    Attributes:
        rule: The rule.
        bucket: The owner of its counts, with the fixed limits.
        key: The built-in key, None for the client's address.
        key_function: The user's key function, if the rule has one.
        cost: The fixed cost; 1 where a function returns it.
        cost_function: The user's cost function, if the rule has one.
        hot: The finder of hot keys, if the rule has a `capacity`.
        plain: Whether limits, key and cost need no call of a user's function.
    """

    __slots__ = ("_plans", "bucket", "cost", "cost_function", "hot", "key", "key_function", "plain", "rule")

    def __init__(self, rule: Rule, bucket: Bucket) -> None:
        self.rule = rule
        self.bucket = bucket
        self.key = rule.key if isinstance(rule.key, Key) else None
        self.key_function = None if isinstance(rule.key, Key) else rule.key
        self.cost = rule.cost if isinstance(rule.cost, int) else 1
        self.cost_function = None if isinstance(rule.cost, int) else rule.cost
        self.hot = None if rule.capacity is None else HotWatch(bucket, rule.capacity)
        self.plain = self.key_function is None and self.cost_function is None and rule.limits_function is None
        self._plans: dict[object, Bucket] = {}

    def check(self, scope: Scope, limiter: Limiter, client_key: str) -> Check:
        """Return the check of a request, without calling functions of the user's."""
        return self.bucket, client_key if self.key is None else self.key.find(scope, limiter, client_key), self.cost

    def at(self, path: str) -> BoundRule:
        """Return the same rule for requests whose path is read as `path`."""
        key = self.key if self.key is None else read_at(self.key, path)
        if key is self.key:
            return self
        bound = copy(self)
        bound.key = key
        return bound

    def plan(self, limits: Limits) -> Bucket | None:
        """Return the bucket for the limits that a limits function returned; None for ``"unlimited"``.

        The bucket has no limits where nobody may pass.

        Raises:
            ConfigurationError: The limits cannot be read.
        """
        known = self._plans.get(limits) if isinstance(limits, (str, Limit)) else None
        if known is None:
            if isinstance(limits, str) and limits.strip().lower() == "unlimited":
                return None
            if not isinstance(limits, (str, Limit)) and isinstance(limits, Iterable):
                limits = tuple(limits)  # an iterator can be read only once
            parsed = () if says_nobody(limits) else parse_limits(limits)
            known = self._plans.get(parsed) or _make_bucket(self.rule, self.bucket.rule, parsed)
            remember(self._plans, parsed, known, _MEMO_PLANS)
            if isinstance(limits, (str, Limit)):
                remember(self._plans, limits, known, _MEMO_PLANS)
        return known


class Selection(NamedTuple):
    """The rules that a request meets: those that limit it, whether they are all plain, those that only look on."""

    limiting: tuple[BoundRule, ...]
    plain: bool
    onlookers: tuple[BoundRule, ...] = ()
    exempt: bool = False
    """Whether a rule says that nothing is counted here."""


class RuleSet:
    """Rules in their order, with the buckets they count in.

    Args:
        rules: The rules.
        claim: Returns a unique identity for that of a rule, as `Internals.claim` does.
        app: The application that the gate guards; its routes say where odd paths lead.

    Raises:
        ConfigurationError: Two rules would count in one bucket: they have the same name, or are alike without one.
    """

    def __init__(self, rules: Sequence[Rule], claim: Callable[[str], str], app: object = None) -> None:
        by_identity: dict[str, Rule] = {}
        self._bound: list[tuple[Rule, BoundRule | None]] = []
        taken: set[str] = set()
        for rule in rules:
            if not isinstance(rule, Rule):
                raise ConfigurationError(
                    f'rules: expected a list such as [Rule("*", "100/minute")], not {rule!r} in it'
                )
            twin = by_identity.get(rule.identity)
            by_identity[rule.identity] = rule
            if twin is not None and not rule.exempt:
                raise ConfigurationError(f"rules: {twin!r} and {rule!r} are one bucket; {_way_out(twin, rule)}")
            self._bound.append((rule, None if rule.exempt else BoundRule(rule, _bucket(rule, claim, taken))))
        self.reserving = {bound.bucket.rule: rule for rule, bound in self._bound if bound and rule.count_if is not None}
        """Rules with a `count_if`, by the identity of their bucket; they refund answers that are not counted."""
        self.looking = {bound.bucket.rule for rule, bound in self._bound if bound and rule.action != "limit"}
        """The identities of the buckets of rules that only look on."""
        self._tree = Tree(app)
        self._known: dict[tuple[str, str, str, str], Selection] = {}
        self._always: Selection | None = None
        if all(rule.always for rule, _ in self._bound):
            self._always = self._select({"type": "http", "path": "/"})[0]

    def select(self, scope: Scope) -> Selection:
        """Return the rules that a request meets, in their order."""
        if self._always is not None:
            return self._always
        asked = scope["type"], scope.get("method", "GET"), scope["path"], scope.get("root_path", "")
        return self._known.get(asked) or self._learn(asked, scope)

    def takes(self, scope: Scope, method: str) -> bool:
        """Return whether a request reaches a known route that declares this method."""
        reached = self._tree.reach(scope)
        return reached is not None and declares(reached.route, method)

    def _learn(self, asked: tuple[str, str, str, str], scope: Scope) -> Selection:
        selection, lasting = self._select(scope)
        # The server alone bounds the length of a path; only ordinary ones are worth remembering.
        if lasting and sum(map(len, asked)) <= _MEMO_PATH:
            remember(self._known, asked, selection, _MEMO)
        return selection

    def _select(self, scope: Scope) -> tuple[Selection, bool]:
        """Return the rules that a request meets, and whether every request of this kind meets the same ones."""
        sight = Sight(scope, self._tree)
        path = route_path(scope)
        found: list[BoundRule] = []
        exempt = False
        for rule, bound in self._bound:
            if bound is not None and (read := sight.limited(rule)) is not None:
                found.append(bound if read == path else bound.at(read))
            if rule.final and sight.ended(rule):
                exempt = rule.exempt
                break
        limiting = tuple(bound for bound in found if bound.rule.action == "limit")
        onlookers = tuple(bound for bound in found if bound.rule.action != "limit")
        return Selection(limiting, all(bound.plain for bound in limiting), onlookers, exempt), sight.lasting

    def names(self) -> set[str]:
        """Return the names that users gave to rules."""
        return {rule.name for rule, _ in self._bound if rule.name is not None}


def all_rules(limits: str | Limit | Iterable[str | Limit] | None, rules: Sequence[Rule] | None) -> Sequence[Rule]:
    """Return the rules that `limits` or `rules` of a middleware stand for."""
    if (limits is None) == (rules is None):
        raise ConfigurationError(
            'RateLimitMiddleware: give limits="100/minute" or rules=[Rule(...), ...], '
            + ("one of them" if limits is None else 'not both; limits is Rule("*", ...)')
        )
    if rules is None:
        return [Rule("*", limits)]
    if isinstance(rules, (str, Rule)) or not isinstance(rules, Iterable):
        raise ConfigurationError(f'rules: expected a list such as [Rule("*", "100/minute")], not {rules!r}')
    return tuple(rules)


def _way_out(twin: Rule, rule: Rule) -> str:
    """Return advice: what to write instead of two rules that would count in one bucket."""
    if rule.name is None:
        return "name one of them, or drop it"
    paths = "*" if "*" in twin.paths + rule.paths else list(dict.fromkeys(twin.paths + rule.paths))
    return f'write one rule, Rule({paths!r}, "5/minute", name={rule.name!r}), or give one of them another name'


def _bucket(rule: Rule, claim: Callable[[str], str], taken: set[str]) -> Bucket:
    """Make the bucket of a rule; its limits get names in header fields that no other rule's limits have."""
    names = []
    for name in wire_names(rule.label, rule.limits):
        names.append(unique_name(name, taken))
        taken.add(names[-1])
    # Unnamed rules of two middlewares count apart, even on one limiter; a name joins their counts.
    identity = rule.identity if rule.name is not None else claim(rule.identity)
    return _make_bucket(rule, identity, rule.limits, names)


def _make_bucket(rule: Rule, identity: str, limits: Sequence[Limit], names: Sequence[str] | None = None) -> Bucket:
    return Bucket(
        identity,
        limits,
        names if names is not None else wire_names(rule.label, limits),
        # Tracking counts everything, or a hot key would cool down while it is hot.
        count_denied=rule.count_denied or rule.action == "track",
        wait_us=rule.wait_us,
        wait_max=rule.wait_max,
        lease=_lease(rule, limits),
        label=rule.label,
    )


def _lease(rule: Rule, limits: Sequence[Limit]) -> int:
    """Return how many units to lease under these limits: none if a limit is exact.

    An exact limit keeps the time of each unit, and a leased unit is charged before it is admitted: it would leave too
    early.
    """
    return 0 if any(limit.exact for limit in limits) else min([rule.lease, *(limit.amount for limit in limits)])
