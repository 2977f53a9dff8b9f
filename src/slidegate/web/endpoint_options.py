"""The options of a `RateLimit`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypedDict

from ..core.arguments import misplaced_option
from ..core.errors import ConfigurationError
from .client_ip import ClientAddress
from .keys import parts_of
from .rule_values import Condition, CostFunction, CountIf, Limits
from .rules import Rule

if TYPE_CHECKING:
    from datetime import timedelta

    from ..limiter.failover import OnError
    from .keys import Key, KeyFunction


class EndpointOptions(TypedDict, total=False):
    """The options that a limit at an endpoint shares with `Rule`, for type checkers."""

    fallback_limits: Limits
    when: Condition | None
    methods: Iterable[str] | None
    concurrency: int | str | None
    key: Key | KeyFunction | None
    cost: int | CostFunction
    cost_max: int | None
    unit: str | None
    count_if: CountIf | None
    count_denied: bool
    shadow: bool
    wait: str | timedelta | None
    wait_max: int
    fair: Key | KeyFunction | None
    on_error: OnError | None
    name: str | None


class EndpointRule(Rule):
    """A rule of an endpoint. It has no paths: the router provides the path parameters by which it counts."""

    def _check_parameters(self, key: Key, option: str) -> None:
        """See `Rule._check_parameters`. Nor does it look for proxies: the middleware has done that at its entrance."""
        for part in parts_of(key):
            if isinstance(part, ClientAddress) and part.trusted:
                raise ConfigurationError(
                    "a limit at an endpoint counts the address that its middleware has determined, because others may "
                    "have changed the request since; write RateLimitMiddleware(client=client_ip(trusted=...)), and "
                    "client_ip() here",
                    option,
                )


def check_options(options: Collection[str]) -> None:
    """Check the names of the options of a `RateLimit`: those of a `Rule` that it lacks would have no effect.

    Raises:
        ConfigurationError: It does not have one of them.
    """
    accepted = [*EndpointOptions.__annotations__, "limits"]
    for option in options:
        if option not in accepted:
            raise ConfigurationError(f"RateLimit: {misplaced_option(option, accepted)}")
