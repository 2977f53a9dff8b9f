"""A rule with its buckets: what a middleware, or an endpoint, counts by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Final

from starlette.types import Scope

from ..core.buckets import Bucket, Check, spelled, unique_name, wire_names
from ..core.concurrency import Concurrency
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit
from ..core.memo import remember
from ..limiter import Limiter
from ..limiter.named_limits import NamedLimit, named_limits
from .keys import Key, KeyFunction, path_parameters
from .paths import PathReader, RulePath
from .rules import Limits, Rule

_MEMO_LIMITS: Final = 256
_PREFLIGHTS: Final = ":preflight"
"""The suffix of an identity that counts preflights."""


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
        calls_functions: Whether its limits, key or cost come from a function of the user's.
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
        functions = rule.limits_function, self.key_function, rule.cost_function
        self.calls_functions = any(function is not None for function in functions)
        # Compiled again: FastHTML, which may be imported after a rule was made, changes what texts routers take.
        self.paths = tuple([RulePath(path.path) for path in rule.rule_paths])
        self._reader = reader
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
        return self.key.find(self.routed(scope), self._limiter, client_key)

    def routed(self, scope: Scope) -> Scope:
        """Return the scope of a request with the path parameters by which the rule counts."""
        if self._reader is None or not self._parameters:
            return scope
        return self._reader.with_parameters(scope, self.paths, self._parameters)

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
            twin.identity += _PREFLIGHTS
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
