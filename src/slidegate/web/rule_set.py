"""The rules of one middleware: `RuleSet.match` returns the plan of the requests that match the same rules.

Default limits have one bucket for each route template and its methods, and one for all paths that match no route. The
application's routers determine the route of a request, so a bucket never depends on how a path is spelled.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from typing import Any, Final
from weakref import WeakValueDictionary

from starlette.types import Scope

from ..core.arguments import check_name
from ..core.errors import ConfigurationError
from ..core.logs import log_failure
from ..core.memo import MANY, PATH_BYTES, remember
from ..limiter import Limiter
from ..limiter.callers import living
from .callbacks import UserCallbacks
from .effects import effects_of
from .endpoint_rule import text_of
from .headers import Headers
from .keys import Key, KeyFunction
from .paths import PathIndex, PathReader, Texts, is_ambiguous
from .plan import BoundRule, Plan, RuleMatch, Signal, Traits
from .routes import UNKNOWN, MountedRoute, is_by_path, layers, reach, visible_app
from .rules import Limits, LimitsFunction, Rule, label_of, method_of
from .signals import Signals

EXEMPT_MARK: Final = "__slidegate_exempt__"
"""The attribute that marks an endpoint as exempt; `functools.wraps` copies it to a wrapper."""
OF_ROUTE: Final = "per-route "
"""What the labels of these limits begin with."""
_A_PREFLIGHT: Final = "a preflight"
"""Stands for the method of a preflight where plans are remembered."""


def all_rules(
    limits: Limits | LimitsFunction | None, rules: Sequence[Rule] | None, key: Key | KeyFunction | None = None
) -> Sequence[Rule]:
    """Return the rules of a middleware: those given, one made from `limits`, or none.

    Args:
        limits: The limits of all requests.
        key: The key of rules that have none.

    Raises:
        ConfigurationError: Both are given.
    """
    if limits is not None and rules is not None:
        raise ConfigurationError(
            'give limits="100/minute", which is Rule("*", ...), or rules=[...], not both', "limits"
        )
    if limits is not None:
        rules = [Rule("*", limits)]
    return [rule.keyed(key) for rule in rules or ()]


class RuleSet:
    """Rules in their order.

    Args:
        default_limits: Limits of each route, which apply after all rules unless a final rule ends the list.
        key: What `default_limits` count by.
        app: The application behind the middleware, whose paths the rules match.
        limiter: The limiter that counts.
        names: The names of buckets.
        signals: The signals of ban policies, of which some are for paths.
        calls: Calls the user's functions.
        headers: Writes header fields.

    Attributes:
        key: What `default_limits` count by; None for the client's address.
        default_rule: The rule of each route, made from `default_limits`; None if there are none.
        in_order: The rules with their buckets, without those of routes and endpoints.
        nothing: The plan of requests that no rule concerns: their client is on a list, or limits are off.
        always: The plan of all requests but preflights, if they match the same rules; else None.
        at_endpoints: The plans of limits at endpoints, by limit and endpoint; they end with the policy, as a reloaded
            file replaces it.
        alike: The same by what the limit counts, and the endpoint.
        first_by_name: The first rule with each name of buckets, as long as it is used.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        default_limits: Limits | LimitsFunction | None,
        *,
        key: Key | KeyFunction | None,
        app: object,
        limiter: Limiter,
        names: Names,
        signals: Signals,
        calls: UserCallbacks,
        headers: Headers,
    ) -> None:
        self.given = tuple(rules)
        self.key = key
        self._limiter = limiter
        self._signals = signals
        self._calls = calls
        self._headers = headers
        self._reader = PathReader(app)
        self._living: WeakValueDictionary[int, BoundRule] = WeakValueDictionary()
        self._by_request: dict[object, Plan] = {}
        self._plans: dict[object, Plan] = {}
        self.at_endpoints: dict[object, tuple[Plan, object, object]] = {}
        self.alike: dict[object, tuple[Plan, object, object]] = {}
        self.default_rule: Rule | None = None
        if default_limits is not None:
            self.default_rule = _default_rule(default_limits, key)
            self._prefix = names.unique("per-route:")
        self._by_route: dict[str, BoundRule] = {}
        self._app = app
        self._is_by_path: bool | None = None
        self.first_by_name: WeakValueDictionary[str, Rule] = WeakValueDictionary()
        self.in_order = self._bound_in_order(names)
        self._anywhere = {index for index, bound in enumerate(self.in_order) if not bound.paths}
        self._index = PathIndex([(path, index) for index, bound in enumerate(self.in_order) for path in bound.paths])
        self.always: Plan | None = None
        self.restart()

    def _bound_in_order(self, names: Names) -> list[BoundRule]:
        """Return the rules with their buckets, whose names in header fields differ.

        Raises:
            ConfigurationError: Two rules would share a bucket.
        """
        in_order: list[BoundRule] = []
        # By shadow: no header field shows a shadow rule, so that it takes no name from others.
        taken: dict[bool, list[str]] = {False: [], True: []}
        for rule in self.given:
            others = taken[rule.is_shadow]
            identity = names.name_of(rule)
            if rule.counts and identity in self.first_by_name:
                raise ConfigurationError(
                    f"{self.first_by_name[identity]!r} and {rule!r} would share one bucket; give one of them another "
                    'name, for example name="burst", or write one rule with all their paths',
                    "rules",
                )
            bound = self.bind(rule, identity, self._reader, [*others])
            others += [limit.name for limit in bound.named]
            in_order.append(bound)
        return in_order

    def restart(self) -> None:
        """Make all plans again, because amounts have changed."""
        # Plans at endpoints stay, since nothing reads their rendered fields, which alone depend on amounts.
        # New dicts: what another thread plans meanwhile, perhaps by the amounts of before, goes into the old ones. The
        # plans of requests come last, which are made of plans of rules, as these are of rendered fields.
        self._plans = {}
        self._by_request = {}
        self.nothing = self.plan_of((), (), Traits(is_enforced=False))
        # One plan for all, if nothing about a request matters but whether it is a preflight.
        depends_on_path = self.default_rule is not None or self._signals.honeypots
        if not depends_on_path and all(map(_is_for_all, self.given)):
            self.always = self.match({"type": "http", "path": "/"})

    # -- plans of requests ---------------------------------------------------------------------------------------------

    def match(self, scope: Scope) -> Plan:
        """Return the plan of a request.

        If that fails, every limit counts the request and nothing exempts it, so that a failure bypasses no limit. Only
        blocks of all paths refuse it.
        """
        method = scope.get("method")
        is_preflight = False
        if method == "OPTIONS" and scope["type"] == "http" and _is_preflight(scope):
            is_preflight, method = True, _A_PREFLIGHT
        try:
            memo_key = scope["path"], scope["type"], method, scope.get("root_path", "")
            plan = self._by_request.get(memo_key)
            if plan is not None:
                return plan
            return self._new_plan(scope, is_preflight, memo_key)
        except Exception as error:
            log_failure("selecting rules failed; every limit counts the request", error, time.monotonic())
            matches = self.matches_of(scope, None)
            if self.default_rule is not None and not is_ended(matches):
                matches.append(self._at_route(UNKNOWN))
            return self.plan_of(matches, (), Traits(is_preflight))

    def _new_plan(self, scope: Scope, is_preflight: bool, memo_key: object) -> Plan:
        """Return the plan of a request, and remember it if all with the same type, method, path and root have it."""
        by_request = self._by_request  # before any amount is read
        texts = self._reader.texts(scope)
        matches = self.matches_of(scope, texts)
        is_lasting = True
        if self.default_rule is not None and not is_ended(matches):
            app = visible_app(self._app, scope)
            if self._is_by_path is None:
                self._is_by_path = is_by_path(app)
            route = reach(app, scope)
            is_lasting = route is not None and self._is_by_path  # a route may be added later
            label = _limited_route(route, scope)
            if label:
                matches.append(self._at_route(label))
        plan = self.plan_of(matches, self._signals.honeypots_at(texts), Traits(is_preflight))
        if is_lasting:
            remember(by_request, memo_key, plan, MANY, PATH_BYTES)
        return plan

    def matches_of(self, scope: Scope, texts: Texts | None) -> list[RuleMatch]:
        """Return the rules that match a request, in order, up to one that certainly ends the list.

        Args:
            texts: The texts of its path; None if they could not be read.
        """
        # Of all rules, if the path is ambiguous (`ANY_PATH` of paths.py, which is empty) or could not be read (None).
        indexes: Iterable[int] = range(len(self.in_order))
        if texts:
            indexes = sorted({*self._anywhere, *self._index.match(texts)})
        scope_type, method = scope["type"], method_of(scope)
        matches: list[RuleMatch] = []
        for index in indexes:
            bound = self.in_order[index]
            if not bound.rule.may_match(scope_type, method):
                continue
            ends = _ends(bound, method, texts)
            if bound.rule.exempts and not ends:  # an exemption applies only if it matches exactly
                continue
            if texts is None and bound.paths and bound.rule.blocks:  # perhaps of another path
                continue
            matches.append(RuleMatch(bound, ends))
            if is_ended(matches):
                break
        return matches

    def plan_of(self, matches: Sequence[RuleMatch], strikes: Sequence[Signal], traits: Traits) -> Plan:
        """Return the plan for the rules that match a request; the same one for the same rules."""
        memo_key = *matches, *map(id, strikes), traits  # signals live as long as the policy, so their ids stay theirs
        plans = self._plans
        return plans.get(memo_key) or remember(plans, memo_key, self.new_plan(matches, strikes, traits))

    def new_plan(self, matches: Sequence[RuleMatch], strikes: Sequence[Signal], traits: Traits) -> Plan:
        """Return a new plan for some rules."""
        if traits.is_preflight and not traits.is_evaluated:  # evaluated ones are those of preflights already
            matches = [RuleMatch(bound.for_preflights(), ends) for bound, ends in matches]
        plan = Plan(tuple(matches), strikes, traits, self._headers)
        plan.effects = effects_of(plan, self._signals, self._calls)
        return plan

    def _at_route(self, label: str) -> RuleMatch:
        """Return the default limits of a route, or those of all requests that match no known route."""
        bound = self._by_route.get(label)
        if bound is None:
            rule: Any = copy(self.default_rule)
            rule.label = label_of([f"{OF_ROUTE}{label}"])
            bound = self.bind(rule, f"{self._prefix}{label}")
            remember(self._by_route, label, bound)  # bounded, as routes may come and go; the counts stay in the store
        return RuleMatch(bound)

    # -- rules with their buckets --------------------------------------------------------------------------------------

    def bind(
        self, rule: Rule, identity: str, reader: PathReader | None = None, taken: Collection[str] = ()
    ) -> BoundRule:
        """Return a rule with its buckets, which operators can change as long as it is in use."""
        engine = self._limiter.engine
        if rule.concurrency is not None:
            engine.expect_permits()
        bound = BoundRule(rule, identity, self._limiter, reader, taken)
        self._living[id(bound)] = bound
        if rule.counts:
            self.first_by_name.setdefault(identity, rule)
        engine.add_limits(bound.named)
        return bound

    def other_limits(self, rule: Rule) -> str:
        """Return how limits at an endpoint differ from the first ones under their name; empty if they do not.

        The first ones under a name are those with which others are compared from then on.
        """
        first = self.first_by_name.setdefault(rule.identity, rule)
        if text_of(first) == text_of(rule):
            return ""
        text = f"the name {rule.name!r} has the limits {text_of(first)} in {first.where}, which count for all, and "
        return text + f"{text_of(rule)} in {rule.where}; write the same, or another name"

    def bound(self) -> list[BoundRule]:
        """Return the counting rules in order, then those of routes and endpoints that were requested so far."""
        return [bound for bound in living(self._living) if bound.rule.counts]


class Names:
    """The names of the buckets of one middleware.

    Args:
        limiter: The limiter, which knows the names of its other middlewares.
        name: The name of the middleware; None for none.
        owner: What owns those of unnamed rules, see `Owners`.

    Attributes:
        middleware: The name of the middleware; empty if it has none.
        unnamed: What `unique` has given names to so far: limits without one, of routes, or of messages.
    """

    def __init__(self, limiter: Limiter, name: str | None, owner: object) -> None:
        self._engine = limiter.engine
        self.middleware = ""
        self._prefix = ""
        if name is not None:
            self.middleware = check_name(name, "name")
            self._prefix = f"{name}:"
        self._owner = owner
        self.unnamed: set[str] = set()

    def name_of(self, rule: Rule) -> str:
        """Return the name of the buckets of a rule."""
        if rule.name is None and rule.counts:
            return self.unique(rule.identity)
        return self._prefix + rule.identity

    def unique(self, identity: str) -> str:
        """Return the name of limits without one, which is stable when a configuration file is reloaded."""
        name = self._prefix + identity
        self.unnamed.add(name)
        return self._engine.owners.identity(name, self._owner)


def _default_rule(limits: Limits | LimitsFunction, key: Key | KeyFunction | None) -> Rule:
    """Return the rule of each route, made from `default_limits`."""
    try:
        return Rule("*", limits, key=key)
    except ConfigurationError as error:
        raise ConfigurationError(error.text, "default_limits") from None


def _limited_route(route: MountedRoute | None, scope: Scope) -> str:
    """Return the label of the route whose default limits count a request; empty if its endpoint is exempt."""
    if route is None:
        return UNKNOWN
    # The function of the method, of an endpoint that is a class, where `get` answers HEAD unless `head` does.
    name = str(scope.get("method")).lower()
    if name == "head" and not hasattr(route.endpoint, name):
        name = "get"
    functions = [*layers(route.endpoint), getattr(route.endpoint, name, None)]
    if not any(EXEMPT_MARK in getattr(function, "__dict__", ()) for function in functions):
        return route.label
    if is_ambiguous(scope["path"]):  # it may lead to another endpoint
        return UNKNOWN
    return ""


def is_ended(matches: Sequence[RuleMatch]) -> bool:
    """Return whether the last of the rules that match a request ends the list, whatever conditions say."""
    return bool(matches) and matches[-1].ends and matches[-1].bound.rule.when is None


def _ends(bound: BoundRule, method: object, texts: Texts | None) -> bool:
    """Return whether a rule that matches a request ends the list.

    Limits and blocks match generously; what exempts or ends the list matches exactly this method, and every text of the
    path.
    """
    rule = bound.rule
    methods = rule.methods
    if rule.blocks:
        return True
    if not rule.is_final:
        return False
    if methods is not None and not (isinstance(method, str) and method in methods):
        return False
    if not bound.paths:
        return True
    if not texts:
        return False
    return all(any(path.is_exactly(text) for path in bound.paths) for text in texts)


def _is_for_all(rule: Rule) -> bool:
    """Return whether every request matches a rule."""
    return not rule.rule_paths and rule.methods is None and rule.connection is None and rule.when is None


def _is_preflight(scope: Scope) -> bool:
    """Return whether a request with the method OPTIONS is a CORS preflight (Fetch standard, section 3.2.2)."""
    names = [name for name, _ in scope["headers"]]  # no set: some servers write a bytearray
    return b"origin" in names and b"access-control-request-method" in names
