"""The three values of a rule: which requests it matches, how it charges them, and what it does with them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from ..core.concurrency import Concurrency
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit
from ..limiter.failover import OnError
from .keys import Key, KeyCondition, KeyFunction
from .paths import RulePath

CostFunction: TypeAlias = Callable[[Any], int | Awaitable[int]]
Limits: TypeAlias = str | AnyLimit | Iterable[str | AnyLimit]
LimitsFunction: TypeAlias = Callable[[Any], Limits | Awaitable[Limits]]
CountIf: TypeAlias = Callable[[int], bool]
"""Returns whether a response counts, given its status."""
Connection: TypeAlias = Literal["http", "websocket"]
Condition: TypeAlias = Callable[[Any], object] | KeyCondition
"""Determines whether a rule applies to a request: a sync or async function that returns a truth value, or a condition
built from a key such as `network`."""

DEFAULT_FALLBACK: Final = "60/minute"
_METHOD: Final = re.compile("[A-Za-z][A-Za-z0-9_-]*")
"""A token (RFC 9110, section 5.6.2) but for signs such as "*", which no method has and which would mean none."""


# -- which requests ----------------------------------------------------------------------------------------------------


class Matching:
    """Which requests a rule matches.

    The arguments are options of `Rule`.

    Attributes:
        paths: The paths as they were written; ``"*"`` for all.
        rule_paths: The same, parsed; none for all.
        methods: The methods; None for all.
        connection: The type of connection; None for both.
        when: The condition; None for none.

    Raises:
        ConfigurationError: An option is invalid.
    """

    def __init__(
        self,
        path: str | Iterable[str],
        methods: Iterable[str] | None,
        connection: Connection | None,
        when: Condition | None,
    ) -> None:
        self.paths: tuple[str, ...] = (path,)  # type: ignore[assignment]  # `RulePath` checks its type
        if not isinstance(path, str) and isinstance(path, Iterable):
            self.paths = tuple(path)
        if not self.paths:  # which would mean every path
            raise ConfigurationError('expected paths such as ["/login", "/token"], not an empty list', "path")
        self.rule_paths: tuple[RulePath, ...] = ()
        if self.paths != ("*",):
            self.rule_paths = tuple([RulePath(text) for text in self.paths])
        if connection not in (None, "http", "websocket"):
            raise ConfigurationError(f'expected "http" or "websocket", not {quoted(connection)}', "connection")
        self.methods = checked_methods(methods)
        self.connection = connection
        self.when = when

    @property
    def is_everything(self) -> bool:
        """Whether every request matches."""
        return not self.rule_paths and self.methods is None and self.connection is None and self.when is None

    def allows(self, kind: str, method: object) -> bool:
        """Return whether requests of a connection type and a method can match, for a limit or a block.

        The case of the method is ignored, and a method that is not text may be any method.
        """
        if self.connection not in (None, kind):
            return False
        if self.methods is None or not isinstance(method, str):
            return True
        return method.lower().upper() in self.methods  # the Kelvin sign is "k" in lower case alone


def checked_methods(methods: object) -> frozenset[str] | None:
    """Return methods in upper case; None for all."""
    if methods is None:
        return None
    listed: list[Any] = []
    if isinstance(methods, Iterable) and not isinstance(methods, str):  # which would be a list of letters
        listed = list(methods)
    if not listed or not all(isinstance(method, str) and _METHOD.fullmatch(method) for method in listed):
        problem = f'expected a list such as ["GET", "POST"], not {quoted(methods)}; omit it for all methods'
        raise ConfigurationError(problem, "methods")
    names = {method.upper() for method in listed}
    if "GET" in names:
        names.add("HEAD")
    return frozenset(names)


# -- how they are charged ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Charging:
    """How a rule charges requests; without limits it counts none.

    Attributes:
        limits: The limits; if a function returns them, those that apply if it fails.
        limits_function: The function that returns them; None for none.
        concurrency: The limit of simultaneous requests; None for none.
        key: What it counts by; None for the client's address.
        cost: The units of a request; if a function returns them, those that apply if it fails.
        cost_function: The function that returns them; None for none.
        cost_max: The most that it may return; None for the smallest amount.
        unit: What the limits count if not requests.
        count_if: Returns whether a response counts, given its status; None if all count.
        count_denied: Whether refused requests count.
        on_error: How to decide when the store fails; None as the limiter does.
        wait_us: How long a request may wait; 0 if it does not.
        wait_max: The most requests of one key that wait at a time.
        fair: The tenants among which permits are shared; None for none.
    """

    limits: tuple[AnyLimit, ...]
    limits_function: LimitsFunction | None
    concurrency: Concurrency | None
    key: Key | KeyFunction | None
    cost: int
    cost_function: CostFunction | None
    cost_max: int | None
    unit: str | None
    count_if: CountIf | None
    count_denied: bool
    on_error: OnError | None
    wait_us: int
    wait_max: int
    fair: Key | KeyFunction | None

    @property
    def all_limits(self) -> tuple[AnyLimit, ...]:
        """The fixed limits, the concurrency limit last."""
        if self.concurrency is None:
            return self.limits
        return (*self.limits, self.concurrency)


# -- what it does with them --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Action:
    """What a rule does with the requests that it matches.

    Attributes:
        exempts: Whether it lets requests pass uncounted.
        blocks: Whether it refuses every request.
        is_shadow: Whether it only reports what it would refuse.
        is_final: Whether no later rule applies.
        status: The status of the response to a blocked request.
    """

    exempts: bool
    blocks: bool
    is_shadow: bool
    is_final: bool
    status: int

    @property
    def kind(self) -> str:
        """``limit``, ``shadow``, ``block`` or ``exempt``."""
        if self.exempts:
            return "exempt"
        if self.blocks:
            return "block"
        if self.is_shadow:
            return "shadow"
        return "limit"
