"""Checks of arguments that users give: unknown names of options, flags, and functions that take something else.

Whoever comes from another library writes what an option is called there. `_CALLED_HERE` is the one table of such names,
and of former names of this package; it answers in every class alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from typing import Final, ParamSpec, TypeVar

from .errors import ConfigurationError, closest, quoted

_P = ParamSpec("_P")
_F = TypeVar("_F")
_T = TypeVar("_T")

_CALLED_HERE: Final[dict[tuple[str, ...], str]] = {
    # slowapi, Flask-Limiter, fastapi-limiter, django-ratelimit, express-rate-limit, rack-attack, fail2ban
    ("key_func", "key_function", "key_generator", "identifier", "request_identifier", "discriminator"): (
        'write key=header("X-API-Key"), or key=function, at a Rule or a RateLimit; addresses are counted without it'
    ),
    ("storage_uri", "storage_url", "storage_options", "storage", "redis", "redis_url"): (
        'write limiter=Limiter.from_url("redis://localhost:6379/0") at RateLimitMiddleware'
    ),
    ("swallow_errors", "in_memory_fallback", "in_memory_fallback_enabled", "pass_on_store_error"): (
        'write on_error="local", "allow" or "deny" at the Limiter'
    ),
    ("trusted_proxies", "trusted_hosts", "trust_proxy", "forwarded_allow_ips", "trusted"): (
        'write client=client_ip(trusted=["10.0.0.0/8"]) at RateLimitMiddleware'
    ),
    ("whitelist", "safelist", "allow_list"): 'write allowlist=Networks(["192.0.2.0/24"]) at RateLimitMiddleware',
    ("blacklist", "deny_list", "denylist"): 'write blocklist=Networks(["192.0.2.0/24"]) at RateLimitMiddleware',
    ("handler", "error_message", "message", "on_breach", "on_limit_reached", "callback", "throttled_responder"): (
        "write on_refused=function at RateLimitMiddleware; it makes the answer from the request and the decision"
    ),
    ("exempt_when", "default_limits_exempt_when", "skip"): (
        'write Rule("*", exempt=True, when=lambda request: ...) before other rules'
    ),
    ("deduct_when", "default_limits_deduct_when", "skip_failed_requests", "skip_successful_requests"): (
        "write count_if=lambda status: status == 401 at a Rule or a RateLimit"
    ),
    ("scope", "shared_limit"): 'write name="search" at each RateLimit or Rule; those of one name share their counts',
    ("application_limits", "limit_value", "rate", "times", "seconds", "minutes", "hours", "period", "window"): (
        'write limits="100/minute" at RateLimitMiddleware, a Rule or a RateLimit'
    ),
    ("per_method", "default_limits_per_method"): (
        'write methods=["POST"] at a Rule; a RateLimit counts the methods of a route together'
    ),
    ("block", "status"): 'write Rule("/admin", block=True) at the middleware; an endpoint can refuse by itself',
    ("exempt", "final"): 'write Rule("/health", exempt=True), or @RateLimit.exempt at an endpoint',
    ("strategy",): "leave it out: every window slides",
    ("headers_enabled", "standard_headers", "legacy_headers"): 'write headers="both" at RateLimitMiddleware',
    ("maxretry", "findtime"): 'write after="20/10m" at a BanPolicy',
    ("bantime",): 'write duration="1h" at a BanPolicy',
    # former names
    ("per_route", "default_limits"): (
        'write default_limits="60/minute" at RateLimitMiddleware for the limits of each route by itself, and '
        "fallback_limits= at a Rule or a RateLimit for those that apply where its limits function fails"
    ),
    ("silence",): 'write ignore_checks=["SG103"] at RateLimitMiddleware',
    ("action", "track"): (
        "write shadow=True to report and refuse nobody, block=True to refuse every request, or on_exceeded=function "
        "alone to be told of hot keys"
    ),
    ("on_tracked",): "write on_exceeded=function, which the file's rules with on_exceeded = true call",
    (
        "capacity",
    ): "leave it out: such a rule keeps a window for each key; slidegate.core.HotKeys counts in fixed memory",
    ("lease",): "leave it out: requests of one key in a turn of the event loop are one question to the store",
    ("preflight_limits",): 'write Rule("*", "600/minute", methods=["OPTIONS"]); rules count preflights apart',
    ("message_limits", "message_key"): 'write messages=MessageLimits("10/second", key="client") at RateLimitMiddleware',
    ("on_exceeded",): (
        "write on_exceeded=function at a Rule or a RateLimit; for messages of websockets, "
        'messages=MessageLimits("10/second", beyond="close")'
    ),
    ("delay",): 'leave it out: answer="drop" costs least',
    ("max_body",): 'leave it out: honeypots such as signals={"/.env": 5} find scanners',
}
"""Options by other names, with what is written here."""


def names_checked(init: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap an `__init__`: its error about an option that it does not know says what to write."""
    options_known = list(signature(init).parameters)[1:]

    @wraps(init)
    def checked(*args: _P.args, **options: _P.kwargs) -> None:
        for option in options:
            if option not in options_known:
                name = init.__qualname__.partition(".")[0]
                raise ConfigurationError(f"{name}: unknown option {quoted(option)}{_hint(option, options_known)}")
        init(*args, **options)

    return checked


def _hint(option: str, options_known: list[str]) -> str:
    here = next((written for names, written in _CALLED_HERE.items() if option in names), None)
    return closest(option, options_known) if here is None else f"; {here}"


def check_flag(what: str, value: object) -> bool:
    """Return `value` if it is True or False.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what}: expected True or False, not {quoted(value)}")
    return value


def expect(what: str, value: _T | None, kind: type[_T], example: str) -> _T | None:
    """Return `value` if it is None or of a class.

    Raises:
        ConfigurationError: It is not.
    """
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{what}: expected {kind.__name__}, for example {example}, not {quoted(value)}")
    return value


def signature_of(function: Callable[..., object], *, follow_wrapped: bool = True) -> Signature | None:
    """Return the signature of a function of the user's, None if it does not tell."""
    try:
        return signature(function, follow_wrapped=follow_wrapped)
    except Exception:  # some functions in C have none; from Python 3.14 on annotations may name what is not there
        return None


def check_takes(what: str, function: _F, *given: str) -> _F:
    """Return a function if it can be called with what it will be given: at a request its failure would be a log line.

    Raises:
        ConfigurationError: It is none, or takes more or less.
    """
    expected = f"{what}: expected a function of {' and '.join(given)}, for example lambda {', '.join(given)}: ..."
    if not callable(function):
        raise ConfigurationError(f"{expected}, not {quoted(function)}")
    parameters = signature_of(function)
    try:
        if parameters is not None:
            parameters.bind(*given)
    except TypeError:
        raise ConfigurationError(f"{expected}, not {quoted(function)}, which takes {parameters}") from None
    return function
