"""The options of a `RateLimit`, and what is said of those that it does not have.

Most mistakes are made where FastAPI expects something else: a `Depends`, or the parameters of a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from ..core.arguments import misplaced_option
from ..core.errors import ConfigurationError, quoted
from .client_ip import ClientAddress
from .keys import parts_of
from .rule_values import Condition, CostFunction, CountIf, Limits
from .rules import Rule

if TYPE_CHECKING:
    from datetime import timedelta

    from ..limiter.failure_policy import OnError
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

    _call = "RateLimit(...)"

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


class GivenInCode:
    """Annotates what code gives and no request has.

    FastAPI reads the parameters of a dependency. For ``Depends(RateLimit)`` it would take those of the class for
    parameters of the request.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> NoReturn:
        """Called by pydantic for a parameter of a request.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            'Depends(RateLimit) has no limits; write Depends(RateLimit("5/minute")), with an object of the class'
        )


class NotADependency(ConfigurationError, AttributeError):
    """An attribute that FastAPI looks for where it expects a `Depends`; for `hasattr` it is missing."""


def limits_of(written: Any, limits: Any) -> Any:
    """Return the limits of a `RateLimit`, which are given by position or by name.

    Args:
        written: The first argument by position.
        limits: The argument of that name.

    Raises:
        ConfigurationError: They are given twice, or a function by position, as in ``@RateLimit`` without parentheses.
    """
    if callable(written):
        name = getattr(written, "__name__", type(written).__name__)
        raise ConfigurationError(
            f'RateLimit: write @RateLimit("5/minute") above {name!r}, with parentheses. If {name} is a function that '
            f"returns limits, write RateLimit(limits={name})"
        )
    if written is not None and limits is not None:
        raise ConfigurationError(f"is given twice; write RateLimit({quoted(written)})", "limits")
    if written is None:
        return limits
    return written


def check_given(written: object, more: tuple[object, ...], options: Collection[str]) -> None:
    """Check what is given to a `RateLimit` beside `limits`.

    Args:
        written: The first argument by position.
        more: The others.
        options: The names of the other arguments.

    Raises:
        ConfigurationError: There are several by position, or options that it does not have.
    """
    if more:
        raise ConfigurationError(_too_many(written, more))
    accepted = [*EndpointOptions.__annotations__, "limits"]
    for option in options:
        if option not in accepted:
            raise ConfigurationError(f"RateLimit: {_not_accepted(option, accepted)}")


def _too_many(written: object, more: tuple[object, ...]) -> str:
    """Return what to write in place of several arguments by position: a path and limits, or limits each by itself."""
    texts = [text for text in (written, *more) if isinstance(text, str)]
    paths = [text for text in texts if text.startswith(("/", "*"))]
    limits = [text for text in texts if text not in paths]
    several = quoted("; ".join(limits))
    if paths and limits:
        return (
            f"RateLimit: it has no path, because its route has one: write RateLimit({several}) at the endpoint, or "
            f"Rule({quoted(paths[0])}, {several}) among the rules of the middleware"
        )
    if len(limits) > 1:
        return f'RateLimit: several limits are one text, separated by ";": write RateLimit({several})'
    return 'RateLimit: expected limits alone by position, for example RateLimit("5/minute", cost=2)'


def _not_accepted(option: str, accepted: Collection[str]) -> str:
    """Return what is wrong with an option that `RateLimit` does not have, but perhaps `Rule`."""
    if option == "exempt":
        return (
            "'exempt' is no option; write @RateLimit.exempt above the function, against default_limits, or "
            'Rule("/path", exempt=True) among the rules of the middleware'
        )
    if option == "path":
        return (
            "'path' is none at an endpoint, whose route has one; "
            "write Rule(path, ...) among the rules of the middleware"
        )
    if option in signature(Rule).parameters:
        return (
            f'{option!r} is none at an endpoint; write Rule("/path", ..., {option}=) among the rules of the middleware'
        )
    return misplaced_option(option, accepted)
