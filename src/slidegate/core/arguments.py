"""Checks of users' arguments: unknown option names, names, whole numbers and texts.

Users of other libraries try the option names they know. `HINTS` maps the most frequent of these names to hints,
which every class gives alike; the documentation of migrations lists all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from .errors import ConfigurationError, closest, quoted

MAX_NAME: Final = 64
"""The most characters of a name."""
_NAME: Final = "(?! )[ -9<-~]+(?<! )"

_HINTS: Final = {
    "key_func identifier": (
        'write key=header("X-API-Key"), or key=function, at a Rule or a RateLimit; addresses are counted without it'
    ),
    "storage_uri redis store": ('write limiter=Limiter.from_url("redis://localhost:6379/0") at RateLimitMiddleware'),
    "default_limits": (
        'write default_limits="60/minute" at RateLimitMiddleware for the limits of each route by itself, and '
        "fallback_limits= at a Rule or a RateLimit for those that apply where its limits function fails"
    ),
    "strategy": "leave it out: every window slides",
    "path config": (
        'write app.add_middleware(RateLimitMiddleware.from_file, path="slidegate.toml") for the options of a file, and '
        'Rule("/login", "5/minute") for those of a path'
    ),
    "times seconds rate": 'write limits="100/minute" at RateLimitMiddleware, a Rule or a RateLimit',
    "exclude_paths exempt_when skip": (
        'write Rule("/health", exempt=True) before other rules, with when=lambda request: ... for a condition'
    ),
    "handler error_message": (
        "write on_refused=function at RateLimitMiddleware; it makes the answer from the request and the decision"
    ),
    "trusted_proxies trusted": 'write client=client_ip(trusted=["10.0.0.0/8"]) at RateLimitMiddleware',
    "whitelist blacklist": ('write allowlist=["192.0.2.0/24"], or blocklist=, at RateLimitMiddleware'),
    "threshold max maxretry": 'write after="20/10m" at a BanPolicy',
}
"""The most frequent options of other libraries, with hints to the equivalent option of slidegate."""
HINTS: Final = {option: hint for options, hint in _HINTS.items() for option in options.split()}
"""The hints by option."""


def unknown_option(option: str, accepted: Iterable[str]) -> str:
    """Return the text of an error about an unknown option, which suggests the right one."""
    hint = closest(option, accepted)
    if option in HINTS:
        hint = f"; {HINTS[option]}"
    return f"unknown option {quoted(option)}{hint}"


def check_name(name: object, option: str, most: int = MAX_NAME) -> str:
    """Return `name` if it is valid in a header field and in a limit string.

    Raises:
        ConfigurationError: It is not 1 to `most` printable ASCII characters, contains ``:`` or ``;``, or starts or ends
            with a space.
    """
    if not isinstance(name, str) or len(name) > most or not re.fullmatch(_NAME, name):
        raise ConfigurationError(
            f'expected 1 to {most} printable ASCII characters without ":" and ";" and without spaces around them, '
            f'for example "api", not {quoted(name)}',
            option,
        )
    return name


def check_whole(value: object, low: int, high: int, option: str, example: str) -> int:
    """Return `value` if it is a whole number from `low` to `high`.

    Raises:
        ConfigurationError: It is not; the message contains `option` and the example.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(
            f"expected a whole number from {low} to {high}, {example}, not {quoted(value)}", option
        )
    return value
