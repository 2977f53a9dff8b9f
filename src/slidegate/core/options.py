"""What options take: one table with the types and an example of each.

A value of a wrong type would fail at each request, or count as true. So it is an error where it is written, as an
unknown option is. Numbers, durations, limits and names are not in the table: what reads them says which are valid.
Users of other libraries try the option names they know: `HINTS` has the most frequent ones; the documentation of
migrations lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import wraps
from inspect import signature
from itertools import chain, repeat
from typing import Any, Final, TypeVar

from .errors import ConfigurationError, closest, quoted
from .memo import remember

_T = TypeVar("_T")

_ROWS: Final = {
    "enabled exempt final shadow block count_denied ban_private changes wide private validated": (
        "bool",
        "True or False, in a file true or false",
    ),
    "path": ("str or [str]", 'a path such as "/items/{id}", or "*" alone for all'),
    "Networks.from_file.path": ("object", ""),
    "limits default_limits": (
        "NoneType or str or AnyLimit or [object] or (request)",
        'limits such as "100/minute", or a function of one argument such as lambda request: "100/minute"',
    ),
    "fallback_limits": ("str or AnyLimit or [object]", 'limits such as "60/minute"'),
    "cost": ("int or (request)", "units such as 5, or a function of one argument such as lambda request: 5"),
    "key fair": (
        "NoneType or Key or (request)",
        'client_ip(), header("X-API-Key") or a function of one argument such as lambda request: request.state.tenant',
    ),
    "BanPolicy.key": ("NoneType or Key", 'a built-in key such as header("X-API-Key")'),
    "_Outbound.key": ("NoneType or (request)", "a function of one argument such as lambda request: request.url.host"),
    "when": (
        "NoneType or KeyCondition or (request)",
        'a condition, or a function of one argument such as lambda request: "debug" in request.query_params',
    ),
    "count_if": (
        "NoneType or [int] or (status)",
        "statuses such as [401, 403], or a function of one argument such as lambda status: status == 401",
    ),
    "on_refused": (
        "NoneType or (request, decision)",
        'a function of two arguments such as lambda request, decision: PlainTextResponse("Slower", 429)',
    ),
    "user": (
        "NoneType or (request)",
        'a function of one argument such as lambda request: request.session.get("admin")',
    ),
    "rules": ("NoneType or [Rule]", 'a list such as [Rule("/login", "5/minute")]'),
    "bans": ("NoneType or BanPolicy or [BanPolicy]", 'BanPolicy(after="20/10m"), or several'),
    "messages": ("NoneType or MessageLimits", 'MessageLimits("10/second")'),
    "client": ("NoneType or ClientAddress", 'client_ip(trusted=["10.0.0.0/8"])'),
    "limiter": ("NoneType or Limiter", 'Limiter.from_url("redis://localhost:6379/0") or another Limiter'),
    "Dashboard.limiter": ("Limiter", "the Limiter of the middleware, for example Limiter()"),
    "blocklist allowlist": ("NoneType or Networks or [object]", 'a list such as ["192.0.2.0/24"]'),
    "BanPolicy.exempt": ("Networks or [object]", 'a list such as ["192.0.2.0/24"]'),
    "trusted": ("Networks or int or [object]", 'networks such as ["10.0.0.0/8"], or the number of proxies such as 1'),
    "networks": ("[Network]", 'a list such as [network("GeoLite2-ASN.mmdb")]'),
    "Limiter.store": (
        "NoneType or Store",
        'a store, for example MemoryStore() or Limiter.from_url("redis://localhost:6379/0")',
    ),
    "observers": ("[object]", "a list of functions or objects, such as [print]"),
    "methods": ("NoneType or [str]", 'a list such as ["GET", "POST"]'),
    "connection": ("NoneType or 'http' or 'websocket'", '"http" or "websocket"'),
    "on_error": ("NoneType or 'local' or 'allow' or 'deny'", 'one of "local", "allow", "deny"'),
    "Limiter.on_error": ("'local' or 'allow' or 'deny'", 'one of "local", "allow", "deny"'),
    "signals": (
        "NoneType or dict or Mapping or mappingproxy",
        'weights of signals such as {"refused": 1, 401: 1, "/wp-login.php": "ban"}',
    ),
    "service": ("NoneType or str", 'text such as "ROUTE53_HEALTHCHECKS"'),
    "reset.rule": ("NoneType or str", 'the name of a rule such as "login"'),
    "query path_param query.name path_param.name": ("str", 'a name such as "page"'),
}
"""By options, what they take, and what a message expects, with an example. They take an object of a class of Python or
slidegate, a text in quotes, a function by what it is called with, or a list by what is in it."""
OPTIONS: Final = {option: row for options, row in _ROWS.items() for option in options.split()}
"""The rows by option; one that differs in a class stands behind the name of the class."""
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
OWNERS: Final[dict[str, Collection[str]]] = {}
"""The names of the options of each class."""
_TUPLES: Final[dict[int, Any]] = {}
"""What iterators gave, with these: a stack that is built again gets the same ones, which are empty by then."""


def options_checked(call: _T) -> _T:
    """Wrap an `__init__` or a function: an unknown option and a value of a wrong type are errors with an example."""
    function: Any = call
    parameters = signature(function).parameters
    kind = function.__qualname__.removesuffix(".__init__")
    is_class = "self" in parameters
    if is_class and not kind.startswith("_"):
        OWNERS[kind] = parameters

    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for option, value in options.items():
            if is_class and option not in parameters:
                raise ConfigurationError(f"{type(args[0]).__name__}: {misplaced_option(option, parameters)}")
            options[option] = checked_value(option, value, kind)
        given = zip(chain(parameters, repeat("")), args, strict=False)  # one argument too many is Python's error
        return function(*[checked_value(option, value, kind) for option, value in given], **options)

    return checked  # type: ignore[return-value]


def misplaced_option(option: str, accepted: Iterable[str], owners: Mapping[str, Collection[str]] = OWNERS) -> str:
    """Return the text of an error about an option that a class or a table does not have; it names those that have it.

    Args:
        owners: The names of the options that each has.
    """
    places = [owner for owner, names in owners.items() if option in names]
    hint = closest(option, accepted)
    if option in HINTS:
        hint = f"; {HINTS[option]}"
    if places and (owners is not OWNERS or option not in HINTS):
        hint = f"; write it at {' or '.join(places)}"
    return f"unknown option {quoted(option)}{hint}"


def checked_value(option: str, value: Any, kind: str = "") -> Any:
    """Return the value of an option of a class or a function; an iterator becomes a tuple.

    Raises:
        ConfigurationError: The option takes no such value.
    """
    if isinstance(value, Iterator) and not callable(value):  # as a mock is
        _, value = remember(_TUPLES, id(value), _TUPLES.get(id(value)) or (value, tuple(value)))
    takes, expected = OPTIONS.get(f"{kind}.{option}") or OPTIONS.get(option, ("object", ""))
    if not any(_is(value, taken) for taken in takes.split(" or ")):
        raise ConfigurationError(f"expected {expected}, not {quoted(value)}", option)
    return value


def _is(value: Any, taken: str) -> bool:
    """Return whether a value is what a row names."""
    within = taken[1:-1]
    if taken[0] == "'":
        return isinstance(value, str) and value == within
    if taken[0] == "[":
        is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        return is_list and all(_is(item, within) for item in value)
    if taken[0] == "(":
        return callable(value) and _can_be_called(value, within)
    # By name, as the rooms of most classes are above this one; a mock has those of what it stands for.
    return any(one.__name__ == taken for one in value.__class__.__mro__)


def _can_be_called(function: Callable[..., object], arguments: str) -> bool:
    """Return whether a function takes some arguments; True if its signature cannot be read.

    A wrapper is asked itself, as it may take what it does not hand on.
    """
    module = str(getattr(function, "__module__", ""))
    # Of ours only `client_key` is a function of a request; others, such as `header`, make something of their argument.
    if module.startswith("slidegate.") and getattr(function, "__name__", "") != "client_key":
        return False
    try:
        bind = signature(function, follow_wrapped=False).bind
    except Exception:  # of somebody's own class, too
        return True
    try:
        bind(*arguments.split(", "))
    except TypeError:
        return False
    return True
