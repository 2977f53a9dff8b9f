"""Checks of options, for the middleware, rules and limits at endpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from typing import Final, ParamSpec, TypeVar

from ..core.errors import ConfigurationError, closest

_T = TypeVar("_T")
_P = ParamSpec("_P")

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


_MOVED: Final = {
    ("RateLimitMiddleware", "message_limits"): 'messages=MessageLimits("10/second")',
    ("RateLimitMiddleware", "message_key"): 'messages=MessageLimits("10/second", key="client")',
    ("RateLimitMiddleware", "on_exceeded"): 'messages=MessageLimits("10/second", beyond="close")',
}
"""Former options, with the options that replace them."""


def names_checked(init: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap an `__init__`: for a misspelt option its error names the nearest one."""
    known = list(signature(init).parameters)[1:]

    @wraps(init)
    def checked(*args: _P.args, **options: _P.kwargs) -> None:
        for option in options:
            if option not in known:
                name = init.__qualname__.partition(".")[0]
                moved = _MOVED.get((name, option))
                hint = closest(option, known) if moved is None else f"; write {moved}"
                raise ConfigurationError(f"{name}: unknown option {option!r}{hint}")
        init(*args, **options)

    return checked


def signature_of(function: Callable[..., object]) -> Signature | None:
    """Return the signature of a function of the user's, None if it does not tell."""
    try:
        return signature(function)
    except Exception:  # some functions in C have none; from Python 3.14 on annotations may name what is not there
        return None


def check_takes(what: str, function: Callable[..., object], *given: str) -> None:
    """Check that a function can be called with what it will be given: at a request its failure would be a log line.

    Raises:
        ConfigurationError: It takes more or less.
    """
    found = signature_of(function)
    try:
        if found is not None:
            found.bind(*given)
    except TypeError:
        raise ConfigurationError(
            f"{what}: expected a function of {' and '.join(given)}, for example lambda {', '.join(given)}: ..., "
            f"not {function!r}, which takes {found}"
        ) from None


def expect(what: str, value: _T | None, kind: type[_T], example: str) -> _T | None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{what}: expected {kind.__name__}, for example {example}, not {value!r}")
    return value


def check_flag(what: str, value: object) -> bool:
    """Return `value` if it is True or False.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what}: expected True or False, not {value!r}")
    return value


def switched_off(enabled: object) -> str:
    """Return the setting that switches everything off; empty if none does."""
    text = os.environ.get("SLIDEGATE_ENABLED", "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(f"SLIDEGATE_ENABLED: expected one of {', '.join(_TRUE + _FALSE)}, not {text!r}")
    if not check_flag("enabled", enabled):
        return "enabled=False"
    return f"SLIDEGATE_ENABLED={text}" if text in _FALSE else ""
