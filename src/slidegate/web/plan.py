"""A rule with its buckets, and a plan: what the requests that match the same rules have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Final, NamedTuple

from starlette.types import Scope

from ..core.bans.policy import BanPolicy
from ..core.buckets import Bucket, Check, spelled, unique_name, wire_names
from ..core.decision import Decision, Reason
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit, Concurrency
from ..core.memo import remember
from ..limiter import Limiter
from ..limiter.named_limits import NamedLimit, named_limits
from .headers import Headers, Rendered
from .keys import Key, KeyFunction, path_parameters
from .paths import PathReader, RulePath
from .rules import Limits, Rule

EXEMPT: Final = Decision(True, Reason.EXEMPT)
DISABLED: Final = Decision(True, Reason.DISABLED)
LEFT: Final = Decision(False, Reason.LIMITED, by="left", status=429)
"""Decides about a request whose client has left while it waited: nobody strikes for it or reports it, and its answer
goes nowhere."""
_MEMO_LIMITS: Final = 256


class BoundRule:
    """A rule with its buckets.

    Args:
        identity: The name of its buckets.
        limiter: The limiter that counts.
        reader: Reads the paths of requests, which are not routed yet; None for a limit at an endpoint.
        taken: The names in header fields that other limits have.

    Attributes:
        identity: The name of its buckets.
        mark: What tells its buckets from those of another rule of this name. It is not the rule, because memos keep
            buckets, and the functions of a rule that a request has made may refer to the request.
        bucket: The bucket of its limits, those that apply if a limits function fails included; None without limits.
        permits: The bucket of its permits; None without `concurrency`.
        charges: Each of these with its cost, for a request that no function of the user's concerns.
        key: The built-in key; None for the client's address.
        key_function: The user's key function, if the rule has one.
        calls_functions: Whether its limits, key or cost come from a function of the user's, or it is fair.
        paths: Its paths, as the routers of this application match them.
    """

    def __init__(
        self,
        rule: Rule,
        identity: str,
        limiter: Limiter,
        reader: PathReader | None = None,
        taken: Collection[str] = (),
    ) -> None:
        self.rule = rule
        self.identity = identity
        self._limiter = limiter
        self._taken = taken
        self.mark = object()
        self.bucket: Bucket | None = None
        if rule.limits:
            self.bucket = self._bucket(rule.limits, is_fallback=rule.limits_function is not None)
        self.permits: Bucket | None = None
        if rule.concurrency is not None:
            self.permits = self._permits(rule.concurrency)
        self.charges = self.charges_of(self.bucket, rule.cost)
        self.key: Key | None = None
        self.key_function: KeyFunction | None = None
        if isinstance(rule.key, Key):
            self.key = rule.key
        else:
            self.key_function = rule.key
        functions = rule.limits_function, self.key_function, rule.cost_function, rule.fair
        self.calls_functions = any(function is not None for function in functions)
        # Compiled again: FastHTML, which may be imported after a rule was made, changes what texts routers take.
        self.paths = tuple([RulePath(path.path) for path in rule.rule_paths])
        self._reader: Any = reader
        self._parameters: Sequence[str] = ()
        if reader is not None:
            self._parameters = path_parameters(rule.key, rule.fair)
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
            by=self.mark,
            shadow=rule.is_shadow,
            is_fallback=is_fallback,
        )

    def _permits(self, concurrency: Concurrency) -> Bucket:
        rule = self.rule
        label = rule.label
        others = {*self._taken}
        if self.bucket is not None:
            label = f"{rule.label}_concurrency"
            others.update(self.bucket.names)
        name = unique_name(spelled(label), others)
        return Bucket(self.identity, (concurrency,), (name,), label=rule.label, on_error=rule.on_error)

    # -- what a request charges ----------------------------------------------------------------------------------------

    def charges_of(self, bucket: Bucket | None, cost: int) -> list[tuple[Bucket, int]]:
        """Return what a request charges: the cost to the bucket of its limits, if it has limits, and one permit."""
        charges: list[tuple[Bucket, int]] = []
        if bucket is not None:
            charges.append((bucket, cost))
        if self.permits is not None:
            charges.append((self.permits, 1))
        return charges

    def checks(self, scope: Scope, client_key: str) -> list[Check]:
        """Return the checks of a request; only if the rule calls no function."""
        key = client_key
        if self.key is not None:  # as `key_of` asks; a call, and a comprehension, would cost each request at endpoints
            key = self.key_of(scope, client_key)
        checks: list[Check] = []
        for bucket, cost in self.charges:
            checks.append((bucket, key, cost))
        return checks

    def key_of(self, scope: Scope, client_key: str) -> str:
        """Return the key of a request, without calling the user's function."""
        if self.key is None:
            return client_key
        if self._parameters:
            scope = self.routed(scope)
        return self.key.read(scope, self._limiter, client_key)

    def routed(self, scope: Scope) -> Scope:
        """Return the scope of a request with the path parameters by which the rule counts."""
        if not self._parameters:
            return scope
        routed: Scope = self._reader.with_parameters(scope, self.paths, self._parameters)
        return routed

    def bucket_for(self, limits: Limits) -> Bucket | None:
        """Return the bucket for the limits that a limits function returned; None for ``"unlimited"``.

        Raises:
            ConfigurationError: They are no limits.
        """
        memo_key: Any = limits
        if isinstance(limits, Iterable) and not isinstance(limits, (str, bytes)):  # perhaps consumed only once
            memo_key = tuple(limits)
        with suppress(TypeError):  # not hashable, and so no limits, as `parse_limits` says
            bucket = self._by_limits.get(memo_key)
            if bucket is not None:
                return bucket
        if isinstance(limits, str) and limits.strip().lower() == "unlimited":
            return None
        return remember(self._by_limits, memo_key, self._bucket(parse_limits(memo_key)), _MEMO_LIMITS)

    # -- preflights, and what operators see ----------------------------------------------------------------------------

    def for_preflights(self) -> BoundRule:
        """Return the same rule with separate counts, for CORS preflights, which browsers send on their own."""
        if self._preflights is None:
            twin = copy(self)
            twin.identity += ":preflight"
            twin._by_limits = {}
            if self.bucket is not None:
                twin.bucket = self.bucket.under(twin.identity)
            if self.permits is not None:
                twin.permits = self.permits.under(twin.identity)
            twin.charges = twin.charges_of(twin.bucket, self.rule.cost)
            self._preflights = twin
        return self._preflights

    def buckets(self) -> list[Bucket]:
        """Return its buckets; if a function returns the limits, that of the fallback limits."""
        buckets = [bucket for bucket, _ in self.charges]
        if self._preflights is not None:
            buckets += self._preflights.buckets()
        return buckets

    @property
    def named(self) -> list[NamedLimit]:
        """The limits by their names in header fields; operators can change them while this object exists."""
        return [limit for bucket, _ in self.charges for limit in self.named_of(bucket)]

    def named_of(self, bucket: Bucket) -> list[NamedLimit]:
        """Return the limits of one of its buckets by their names."""
        return named_limits(bucket, changeable=bucket.is_permit or self.rule.limits_function is None)


class RuleMatch(NamedTuple):
    """A rule that matches a request.

    Attributes:
        ends: Whether it ends the list, if its condition holds.
    """

    bound: BoundRule
    ends: bool = False


class Signal(NamedTuple):
    """A reason for which a ban policy strikes, and the number of strikes."""

    ban_policy: BanPolicy
    weight: int
    reason: str


class Traits(NamedTuple):
    """The requests of a plan, besides the rules that they match.

    Attributes:
        is_preflight: They are CORS preflights.
        is_evaluated: The conditions of their rules are true.
        is_enforced: Ban policies and limits at endpoints are enforced: the client is on no list, and nothing is off.
    """

    is_preflight: bool = False
    is_evaluated: bool = False
    is_enforced: bool = True


class Plan:
    """What the requests that match the same rules have in common.

    Args:
        matches: The rules, in order.
        strikes: The signals of ban policies for their path.
        traits: What else they have in common.
        headers: Writes their header fields.

    Attributes:
        matches: The rules, in order.
        is_conditional: Whether a rule has a condition. The plan depends on its result then, and no rule has ended the
            list yet.
        evaluated: The plans that it leads to then, by the rules that are left.
        is_exempt: Whether ban policies ignore these requests.
        is_enforced: See `Traits`.
        strikes: The signals of ban policies for their path; none if they are exempt.
        limiting: The rules that limit them.
        shadows: The rules in shadow mode.
        reserving: The limiting rules that may hand back what they have charged, by the marks of their buckets.
        is_followed: Whether there are such rules, or shadow rules, which an admission has consequences for.
        waiting: The limiting rules with `wait`; none beside one that counts refusals.
        calls_functions: Whether a rule that limits them does.
        is_direct: Whether one hit with `checks` decides them: there are limits, which call no function and do not wait,
            and neither conditions nor honeypots.
        verdict: What decides if no limit counts: exempt, or blocked by a rule.
        effects: What depends on their responses: each an `Effect` of `visit.py`.
        rendered: The header fields of an admission by these limits, without the numbers; None if functions decide which
            limits that are, or if there are none.
    """

    def __init__(
        self, matches: Sequence[RuleMatch], strikes: Sequence[Signal], traits: Traits, headers: Headers
    ) -> None:
        self.matches = matches
        self.traits = traits
        self.is_enforced = traits.is_enforced
        self.evaluated: dict[object, Plan] = {}
        self.is_conditional = not traits.is_evaluated and any(bound.rule.when is not None for bound, _ in matches)
        last: Rule | None = None
        if matches and matches[-1].ends and not self.is_conditional:  # else the conditions say which rule ends the list
            last = matches[-1].bound.rule
        self.is_exempt = traits.is_preflight or (last is not None and last.exempts)
        self.strikes: Sequence[Signal] = ()
        if not self.is_exempt:
            self.strikes = strikes
        self.verdict = EXEMPT
        if last is not None and last.blocks:
            self.verdict = Decision(False, Reason.BLOCKED, by=last.label, status=last.status)
        self.limiting: list[BoundRule] = []
        self.shadows: list[BoundRule] = []
        for bound, _ in matches:
            if bound.rule.counts and bound.rule.is_shadow:
                self.shadows.append(bound)
            elif bound.rule.counts and self.verdict.allowed:
                self.limiting.append(bound)
        self.waiting = [bound for bound in self.limiting if bound.rule.wait_us]
        if any(bound.rule.count_denied for bound in self.limiting):
            self.waiting = []  # a wait asks many times, and each would count
        self.reserving = {bound.mark: bound.rule for bound in self.limiting if bound.rule.reserves}
        self.is_followed = bool(self.reserving or self.shadows)
        self.effects: Sequence[Any] = ()
        self.rendered: Rendered | None = None
        self.calls_functions = any(bound.calls_functions for bound in self.limiting)
        needs_more = self.is_conditional or self.strikes or self.waiting or self.calls_functions
        self.is_direct = bool(self.limiting) and not needs_more
        charges = [charge for bound in self.limiting for charge in bound.charges]
        self._by_client: Sequence[tuple[Bucket, int]] = ()  # what a request charges, if all rules count by client
        if all(bound.key is None for bound in self.limiting):
            self._by_client = charges
        if self.limiting and not self.calls_functions:
            self.rendered = headers.render([(bucket, "", cost) for bucket, cost in charges])

    def checks(self, scope: Scope, client_key: str) -> list[Check]:
        """Return the checks of a request; only if no rule that limits it calls a function."""
        checks: list[Check] = []
        for bucket, cost in self._by_client:
            checks.append((bucket, client_key, cost))
        if not checks:
            for bound in self.limiting:
                checks += bound.checks(scope, client_key)
        return checks
