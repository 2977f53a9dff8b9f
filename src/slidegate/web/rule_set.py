"""The rules of one middleware: `RuleSet.match` returns the plan of the requests that match the same rules."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from starlette.types import Scope

from ..core.arguments import check_list
from ..core.buckets import Bucket, Check, spelled, unique_name, wire_names
from ..core.concurrency import Concurrency
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit
from ..core.logs import Throttle, logger
from ..core.memo import MANY, PATH_BYTES, remember
from ..core.question import Question
from ..limiter import Limiter
from ..limiter.engine import living
from ..limiter.overrides import NamedLimit, named
from .decided import EXEMPT
from .default_limits import DefaultLimits
from .exchange import Hook
from .hooks import Report, hooks_of
from .keys import Key, KeyFunction, everyone, path_parameters
from .paths import ANY_PATH, PathIndex, PathReader, RulePath, Texts, with_parameters
from .rules import Limits, LimitsFunction, Rule

if TYPE_CHECKING:
    from .bans import BanSignals, Signal
    from .headers import Rendered
    from .middleware import RateLimitMiddleware

MAX_QUESTIONS: Final = 32_768
"""How many questions all plans together remember, at 600 bytes each."""
_MEMO_LIMITS: Final = 256
_PREFLIGHTS: Final = ":preflight"
"""The suffix of an identity that counts preflights."""


def all_rules(
    limits: Limits | LimitsFunction | None, rules: Sequence[Rule] | None, key: Key | KeyFunction | None = None
) -> Sequence[Rule]:
    """Return the rules of a middleware: those given, one made from `limits`, or none.

    Args:
        limits: The limits of all requests.
        rules: The rules.
        key: The key of rules that have none.

    Raises:
        ConfigurationError: Both are given, or two rules would share a bucket.
    """
    if rules is None:
        return [] if limits is None else [Rule("*", limits, key=key)]
    if limits is not None:
        raise ConfigurationError(
            'give limits="100/minute", which is Rule("*", ...), or rules=[...], not both', "limits"
        )
    listed: list[Rule] = check_list("rules", rules, 'a list such as [Rule("*", "100/minute")]', Rule)
    known: dict[str, Rule] = {}
    for rule in [one for one in listed if one.counts]:
        if rule.identity in known:
            both = f"{known[rule.identity]!r} and {rule!r}"
            advice = 'give one of them another name, for example name="burst", or write one rule with all their paths'
            raise ConfigurationError(f"{both} would share one bucket; {advice}", "rules")
        known[rule.identity] = rule
    return listed if key is None else [rule.keyed(key) for rule in listed]


class BoundRule:
    """A rule with its buckets: creates the checks of requests.

    Args:
        rule: The rule.
        identity: The name of its buckets.
        paths: Reads the paths of requests, which are not routed yet; None for a limit at an endpoint.
        taken: The names in header fields that other limits have.

    Attributes:
        rule: The rule.
        identity: The name of its buckets.
        counts: The bucket of its limits, those that apply if a limits function fails included; None without limits.
        permits: The bucket of its permits; None without `concurrency`.
        key: The built-in key; None for the client's address.
        key_function: The user's key function, if the rule has one.
        paths: Its paths, as the routers of this application match them.
        asks: Whether its limits, key, cost or condition come from a function of the user's, or requests wait.
        by_client: Whether its checks are the same for all requests of a client.
    """

    def __init__(self, rule: Rule, identity: str, paths: PathReader | None = None, taken: Collection[str] = ()) -> None:
        self.rule = rule
        self.identity = identity
        self._taken = taken
        is_fallback = rule.limits_function is not None
        self.counts = self._bucket(rule.limits, is_fallback=is_fallback) if rule.limits else None
        self.permits = None if rule.concurrency is None else self._permits(rule.concurrency)
        self.key = rule.key if isinstance(rule.key, Key) else None
        self.key_function = None if isinstance(rule.key, Key) else rule.key
        functions = rule.limits_function, self.key_function, rule.cost_function, rule.when
        self.asks = any(function is not None for function in functions) or bool(rule.wait_us)
        self.by_client = not self.asks and (self.key is None or self.key is everyone)
        self._parameters = path_parameters(rule.key, rule.fair)
        self._reader = paths if self._parameters else None
        # Compiled anew: FastHTML, which may be imported after a rule was made, changes what texts routers take.
        self.paths = tuple([RulePath(path.path) for path in rule.rule_paths])
        self._by_limits: dict[object, Bucket] = {}
        self._preflights: BoundRule | None = None

    def _bucket(self, limits: Sequence[AnyLimit], *, is_fallback: bool = False) -> Bucket:
        rule = self.rule
        return Bucket(
            self.identity,
            limits,
            wire_names(rule.label, limits, self._taken),
            count_denied=rule.count_denied,
            unit=rule.unit,
            label=rule.label,
            on_error=rule.on_error,
            by=rule,
            shadow=rule.shadow,
            is_fallback=is_fallback,
        )

    def _permits(self, concurrency: Concurrency) -> Bucket:
        rule, own = self.rule, () if self.counts is None else self.counts.names
        name = unique_name(spelled(f"{rule.label}_concurrency" if own else rule.label), {*self._taken, *own})
        return Bucket(self.identity, (concurrency,), (name,), label=rule.label, on_error=rule.on_error)

    @property
    def named(self) -> list[NamedLimit]:
        """The limits by their names in header fields; operators can change them while this object exists."""
        changeable = self.rule.limits_function is None
        limits = [] if self.counts is None else named(self.counts, changeable=changeable)
        return limits if self.permits is None else [*limits, *named(self.permits)]

    def for_preflights(self) -> BoundRule:
        """Return the same rule with separate counts, for CORS preflights, which browsers send on their own."""
        if self._preflights is None:
            twin = self._preflights = copy(self)
            twin.identity += _PREFLIGHTS
            twin.counts = None if self.counts is None else self.counts.under(twin.identity)
            twin.permits = None if self.permits is None else self.permits.under(twin.identity)
            twin._by_limits = {}
        return self._preflights

    def routed(self, scope: Scope) -> Scope:
        """Return the scope of a request with the path parameters by which the rule counts."""
        return with_parameters(scope, self.paths, self._reader, self._parameters) if self._reader else scope

    def key_of(self, scope: Scope, limiter: Limiter, client_key: str) -> str:
        """Return the key of a request, without calling the user's function."""
        return client_key if self.key is None else self.key.find(self.routed(scope), limiter, client_key)

    def checks(self, key: str, cost: int, bucket: Bucket | None) -> list[Check]:
        """Return the checks of a request; `bucket` is that of its limits, None for none."""
        checks: list[Check] = [] if bucket is None else [(bucket, key, cost)]
        return checks if self.permits is None else [*checks, (self.permits, key, 1)]

    def buckets(self) -> list[Bucket]:
        """Return its buckets; if a function returns the limits, that of the fallback limits."""
        own = [bucket for bucket in (self.counts, self.permits) if bucket is not None]
        return own if self._preflights is None else [*own, *self._preflights.buckets()]

    def with_limits(self, limits: Limits) -> Bucket | None:
        """Return the bucket for the limits that a limits function returned; None for ``"unlimited"``.

        Raises:
            ConfigurationError: They are no limits.
        """
        known: Any = limits
        if isinstance(limits, Iterable) and not isinstance(limits, (str, bytes)):  # perhaps consumed only once
            known = tuple(limits)
        bucket = None
        with suppress(TypeError):  # not hashable, and so no limits, as `parse_limits` says
            bucket = self._by_limits.get(known)
        if bucket is None and not (isinstance(known, str) and known.strip().lower() == "unlimited"):
            bucket = remember(self._by_limits, known, self._bucket(parse_limits(known)), _MEMO_LIMITS)
        return bucket


Met: TypeAlias = tuple[BoundRule, bool]
"""A rule that matches a request, and whether it ends the list."""


class Kind(NamedTuple):
    """The requests of a plan, besides the rules that they match.

    Attributes:
        is_websocket: They are handshakes of websockets.
        is_preflight: They are CORS preflights.
        is_evaluated: The conditions of their rules are true.
    """

    is_websocket: bool = False
    is_preflight: bool = False
    is_evaluated: bool = False


class Plan:
    """What the requests that match the same rules have in common.

    Args:
        met: The rules, in order.
        strikes: The signals of ban policies for their path.
        kind: What else they have in common.
        signals: The signals of ban policies.
        report: Reports outcomes.

    Attributes:
        met: The rules, in order.
        strikes: The signals of ban policies for their path; none if the request is exempt.
        kind: What else they have in common.
        is_websocket: Whether they are handshakes of websockets.
        is_exempt: Whether ban policies ignore them.
        limiting: The rules that limit them.
        shadows: The rules in shadow mode.
        is_conditional: Whether a rule has a condition. The plan depends on its result then, and no rule has ended the
            list yet.
        verdict: What decides if no limit counts: exempt, or blocked by a rule.
        by_client: Whether the question is the same for all requests of a client.
        asks: Whether functions of the user's, queues, strikes or shadow rules are involved.
        hooks: The hooks of their responses; those of a conditional plan depend on its result as well.
        reported: These and, in front, the one that reports their outcomes.
        questions: What was recently asked, by client; by client and keys if rules count by something else.
        rendered: What their header fields have in common; None before the first question.
    """

    def __init__(
        self, met: Sequence[Met], strikes: Sequence[Signal], kind: Kind, signals: BanSignals, report: Report
    ) -> None:
        self.met = met
        self.kind = kind
        self.is_conditional = not kind.is_evaluated and any(bound.rule.when is not None for bound, _ in met)
        last = met[-1][0].rule if met and met[-1][1] and not self.is_conditional else None
        is_blocked = last is not None and last.blocks
        counting = [bound for bound, _ in met if bound.rule.counts]
        self.is_websocket = kind.is_websocket
        self.is_exempt = kind.is_preflight or (last is not None and last.exempt)
        self.strikes = () if self.is_exempt else strikes
        self.limiting = () if is_blocked else tuple([bound for bound in counting if not bound.rule.shadow])
        self.shadows = tuple([bound for bound in counting if bound.rule.shadow])
        self.verdict = EXEMPT
        if last is not None and is_blocked:
            self.verdict = Decision(False, Reason.BLOCKED, by=last.label, status=last.status)
        self.by_client = all(bound.by_client for bound in self.limiting)
        involved = self.is_conditional, self.shadows, self.strikes, *(bound.asks for bound in self.limiting)
        self.asks = any(involved)
        self.hooks: Sequence[Hook] = () if self.is_conditional else hooks_of(self, signals)
        self.reported = (report, *self.hooks)
        self.questions: dict[object, Question] = {}
        self.rendered: Rendered | None = None


class RuleSet:
    """Rules in their order.

    Args:
        middleware: The middleware.
        default_limits: Limits of each route, which apply after all rules unless a final rule ends the list.

    Attributes:
        defaults: The `default_limits`; None if there are none.
        own: The rules with their buckets, without those of routes and endpoints.
        always: The plan of all HTTP requests but preflights, if they match the same rules; else None.
        at_endpoints: The plans of limits at endpoints, which end with the middleware, as a reloaded file replaces it.
    """

    def __init__(self, middleware: RateLimitMiddleware, default_limits: Limits | LimitsFunction | None) -> None:
        rules = middleware.rules
        self._signals, self._report = middleware.signals, middleware.report
        self._paths = PathReader(middleware.app)
        self._engine = middleware.limiter.engine
        self._living: WeakValueDictionary[int, BoundRule] = WeakValueDictionary()
        self.defaults = None if default_limits is None else DefaultLimits(middleware, default_limits, self.bind)
        self.own: list[BoundRule] = []
        taken: dict[bool, frozenset[str]] = {False: frozenset(), True: frozenset()}
        for rule in rules:
            is_unnamed = rule.name is None and rule.counts
            identity = middleware.unique_id(rule.identity) if is_unnamed else middleware.prefix + rule.identity
            bound = self.bind(rule, identity, self._paths, taken[rule.shadow])
            # By shadow: no header field shows a shadow rule, so that it takes no name from others.
            taken[rule.shadow] = taken[rule.shadow].union(limit.name for limit in bound.named)
            self.own.append(bound)
        self._index = PathIndex([(path, index) for index, bound in enumerate(self.own) for path in bound.paths])
        self._anywhere = {index for index, bound in enumerate(self.own) if not bound.paths}
        self._throttle = Throttle()
        self._by_request: dict[object, Plan] = {}
        self._plans: dict[object, Plan] = {}
        self.at_endpoints: dict[object, tuple[Plan, object]] = {}
        self._made: WeakValueDictionary[int, Plan] = WeakValueDictionary()
        self._recent: deque[tuple[dict[object, Question], object]] = deque()
        self.always: Plan | None = None
        if self.defaults is None and not self._signals.on_request and all(rule.always for rule in rules):
            self.always = self.match({"type": "http", "path": "/"})

    def match(self, scope: Scope) -> Plan:
        """Return the plan of a request.

        If that fails, every limit counts the request and nothing exempts it, so that a failure bypasses no limit.
        """
        method, is_preflight = scope.get("method"), False
        if method == "OPTIONS" and scope["type"] == "http" and _is_preflight(scope):
            is_preflight, method = True, "a preflight"
        try:
            request = scope["path"], scope["type"], method, scope.get("root_path", "")
            plan = self._by_request.get(request)
            if plan is not None:
                return plan
            is_lasting, texts = True, self._paths.texts(scope)
            met, is_ended = self.met(scope, texts)
            if self.defaults is not None and not is_ended:
                defaults, is_lasting = self.defaults.find(scope)
                met += [(bound, False) for bound in defaults]
            strikes = self._signals.met(texts)
        except Exception as error:
            left_out = self._throttle.left_out(type(error), time.monotonic())
            if left_out is not None:
                logger.exception("selecting rules failed; every limit counts the request (suppressed=%d)", left_out)
            is_lasting, strikes = False, ()
            met, _ = self.met(scope, ANY_PATH)
            met += [] if self.defaults is None else [(self.defaults.of(), False)]
        if is_preflight:
            met = [(bound.for_preflights(), ends) for bound, ends in met]
        plan = self.plan_of(met, strikes, Kind(scope["type"] == "websocket", is_preflight))
        return remember(self._by_request, request, plan, MANY, PATH_BYTES) if is_lasting else plan

    def met(self, scope: Scope, texts: Texts) -> tuple[list[Met], bool]:
        """Return the rules that match, each with whether it ends the list, and whether one certainly does."""
        indexes: Iterable[int] = range(len(self.own))
        if texts:
            indexes = sorted({*self._anywhere, *self._index.find(texts)})
        kind, method = scope["type"], method_of(scope)
        met: list[Met] = []
        for index in indexes:
            bound = self.own[index]
            rule = bound.rule
            is_for = limits_kind(rule, kind, method)
            ends = is_for and (rule.blocks or (rule.final and _is_exact(bound, method, texts)))
            if ends or (is_for and not rule.exempt):
                met.append((bound, ends))
            if ends and rule.when is None:
                return met, True
        return met, False

    def plan_of(self, met: Sequence[Met], strikes: Sequence[Signal], kind: Kind) -> Plan:
        """Return the plan for the rules that a request meets; the same one for the same rules."""
        known = *met, *map(id, strikes), kind
        plan = self._plans.get(known)
        if plan is None:
            plan = Plan(tuple(met), strikes, kind, self._signals, self._report)
            self._made[id(plan)] = plan
            remember(self._plans, known, plan)
        return plan

    def bind(
        self, rule: Rule, identity: str, paths: PathReader | None = None, taken: Collection[str] = ()
    ) -> BoundRule:
        """Return a rule with its buckets, which operators can change as long as it is in use."""
        if rule.concurrency is not None:
            self._engine.expect_permits()
        bound = BoundRule(rule, identity, paths, taken)
        self._living[id(bound)] = bound
        self._engine.overrides.register(bound.named)
        return bound

    def plan_of_endpoint(self, rule: Rule, identity: str) -> Plan:
        """Return the plan for a limit at an endpoint."""
        return self.plan_of(((self.bind(rule, identity), False),), (), Kind())

    def remember_question(self, plan: Plan, known: object, question: Question) -> None:
        """Store a question in its plan, in place of the oldest ones of all plans if there are too many.

        A bound for each plan alone is none for clients, who choose among the routes.
        """
        questions = plan.questions
        remember(questions, known, question, MANY)
        if known in questions:
            self._recent.append((questions, known))
        if len(self._recent) > MAX_QUESTIONS:
            questions, oldest = self._recent.popleft()
            questions.pop(oldest, None)

    def forget_questions(self) -> None:
        """Make all questions anew, because a list or an amount has changed.

        Each new one frees an old one, as freeing all of them at once would take tens of milliseconds.
        """
        for plan in living(self._made):
            plan.questions = {}
            plan.rendered = None

    def bound(self) -> list[BoundRule]:
        """Return the counting rules in order, then those of routes and endpoints that were requested so far."""
        return [bound for bound in living(self._living) if bound.rule.counts]


def method_of(scope: Scope) -> Any:
    """Return the method of a request; a handshake is a GET, even if its server names another, as NGINX Unit did."""
    return "GET" if scope["type"] == "websocket" else scope.get("method", "GET")


def limits_kind(rule: Rule, kind: str, method: object) -> bool:
    """Return whether a limit or a block is for a connection type and a method.

    The case of the method is ignored, and a method that is not text may be any method.
    """
    known = method.lower().upper() if isinstance(method, str) else None
    return rule.connection in (None, kind) and (rule.methods is None or known is None or known in rule.methods)


def _is_exact(bound: BoundRule, method: object, texts: Texts) -> bool:
    """Return whether an exempt or final rule is for exactly this method, and every text of the path."""
    methods, paths = bound.rule.methods, bound.paths
    if methods is not None and not (isinstance(method, str) and method in methods):
        return False
    return not paths or (bool(texts) and all(any(path.is_exactly(text) for path in paths) for text in texts))


def _is_preflight(scope: Scope) -> bool:
    """Return whether a request with the method OPTIONS is a CORS preflight (Fetch standard, section 3.2.2)."""
    names = [name for name, _ in scope["headers"]]  # no set: some servers write a bytearray
    return b"origin" in names and b"access-control-request-method" in names
