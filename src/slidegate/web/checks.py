"""Checks of a middleware's settings, at the start and in its first requests: what works but is probably a mistake.

Each kind of finding has a code that never changes, and a heading in `docs/reference/findings.md`. What the routes of
the application show is looked at in `route_checks.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from starlette.applications import Starlette
from starlette.types import Scope

from ..core.addresses import IPV6_PREFIX
from ..core.arguments import check_flag
from ..core.bans.policy import BanPolicy, ban_target
from ..core.errors import ConfigurationError, closest, quoted
from ..core.limits import AnyLimit
from ..core.store import Store
from ..limiter import Limiter
from .client_ip import UNKNOWN_PEER, ClientAddress, is_gone
from .keys import is_known
from .matching import PathIndex, PathMatcher
from .request import RequestLimits
from .routes import layers, root_of
from .rules import Rule

CODES: Final = {
    "SG101": "most addresses are trusted proxies",
    "SG102": "a proxy's header comes in, and no proxy is trusted",
    "SG103": "several processes, each with a memory of its own",
    "SG104": "a rule can never apply",
    "SG105": "one named rule stands in two middlewares",
    "SG107": "browsers will not see the 429",
    "SG108": "one customer is many clients",
    "SG109": "the server names no peer",
    "SG110": "slidegate is switched off",
    "SG111": "bans meet the proxy, not its clients",
    "SG112": "a honeypot does not work",
    "SG113": "a banned client can come back under another value",
    "SG115": "the store forgets what it counts",
    "SG116": "the user is known too late",
    "SG121": "a limited function is not awaited",
    "SG122": "rules count the dashboard or the admin API",
    "SG123": "no route meets a rule",
}
"""Every code, with its subject."""
WATCHED: Final = 1_000
"""The number of requests that are checked."""
_PROXY_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})
CLIENT_CHOOSES: Final = r"(?:^|\+)(?:header|cookie|query):"
"""Finds in the identity of a key a value that the client chooses, but no fallback of such a kind."""
_SERVERS: Final = frozenset({"uvicorn", "gunicorn", "granian", "hypercorn", "fastapi", "slidegate"})
_VARIABLES: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
_WORKERS: Final = r"(?<!\S)(?:--workers(?:=| +)|-w ?)([0-9]{1,6})(?!\S)"
_PARAMETER: Final = r"\{\w+(?::(\w+))?\}"
_ALL_BELOW: Final = r"([^{]*)\{\w+:path\}"


_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


class Finding(NamedTuple):
    """A setting that works, but probably not as it is meant.

    Attributes:
        code: Its kind, for example ``"SG103"``; give it to `ignore_checks` to turn the finding off.
        message: The probable mistake, and the way out.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@runtime_checkable
class Checked(Protocol):
    """The part of a middleware that the checks see."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def limiter(self) -> Limiter:
        """The limiter that holds its counts."""

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules that it holds requests to."""

    @property
    def default_limits(self) -> Sequence[AnyLimit]:
        """The limits of each route."""


def switched_off(enabled: object) -> str:
    """Return the setting that switches everything off; empty if none does."""
    text = os.environ.get("SLIDEGATE_ENABLED", "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(f"SLIDEGATE_ENABLED: expected one of {', '.join(_TRUE + _FALSE)}, not {quoted(text)}")
    if not check_flag("enabled", enabled):
        return "enabled=False"
    return f"SLIDEGATE_ENABLED={text}" if text in _FALSE else ""


def checked_codes(ignore_checks: Iterable[str]) -> frozenset[str]:
    """Return the codes of findings that are not reported.

    Raises:
        ConfigurationError: There is no such code.
    """
    example = 'expected a list of codes such as ["SG103"]'
    if isinstance(ignore_checks, str) or not isinstance(ignore_checks, Iterable):
        raise ConfigurationError(f"ignore_checks: {example}, not {quoted(ignore_checks)}")
    codes = list(ignore_checks)
    for code in codes:
        if not isinstance(code, str):
            raise ConfigurationError(f"ignore_checks: {example}, not {quoted(code)} in it")
        if code not in CODES:
            near = closest(code.upper().replace("O", "0"), CODES)
            raise ConfigurationError(f"ignore_checks: unknown code {quoted(code)}{near}")
    return frozenset(codes)


def about_settings(
    middleware: Checked, client: ClientAddress, off: str, policies: Collection[BanPolicy]
) -> Iterator[Finding]:
    """Yield the findings about the settings of a middleware.

    Args:
        middleware: The middleware.
        client: How it finds the client's address.
        off: The setting that switches it off; empty if none does.
        policies: Its ban policies.
    """
    if off:
        yield Finding(
            "SG110",
            f"slidegate is switched off ({off}): every request passes; where that is not meant, take it out",
        )
    for address in (client, *(rule.key for rule in middleware.rules)):
        if isinstance(address, ClientAddress):
            yield from _about_address(address)
    where = many_workers(os.environ, sys.argv)
    if where and middleware.limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets up to that many times each; "
            'LmdbStore counts for all of them: Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )
    yield from _about_rules(middleware)
    yield from _about_layers(middleware)
    yield from _about_bans(policies)


def _about_address(client: ClientAddress) -> Iterator[Finding]:
    if client.permissive:
        yield Finding(
            "SG101",
            "most addresses are trusted proxies, so any client can name itself in a header; list the networks of your "
            "proxies, or say how many stand in front: client_ip(trusted=1)",
        )
    if client.ipv6_prefix > IPV6_PREFIX:
        yield Finding(
            "SG108",
            f"ipv6_prefix={client.ipv6_prefix}: one customer usually has a whole /64 and can use any number of its "
            "addresses; 64 is the default",
        )


def _about_rules(middleware: Checked) -> Iterator[Finding]:
    """Yield the findings about rules that can never apply."""
    for earlier, later in hidden_rules(middleware.rules):
        yield Finding(
            "SG104",
            f"{later!r} can never apply: {earlier!r} comes first, covers it and ends the list; put {later!r} first",
        )
    last = next((rule for rule in middleware.rules if rule.final and rule.always), None)
    if middleware.default_limits and last is not None:
        yield Finding(
            "SG104",
            f"default_limits can never apply: {last!r} covers all requests and ends the list; give it a path, or leave "
            "out one of them",
        )
    root = root_of(middleware.app)
    for rule in middleware.rules if root else ():
        path = next((path for path in rule.paths if rule.exempt and path.startswith(f"{root}/")), None)
        if path is not None:
            yield Finding(
                "SG104",
                f"{quoted(path)} exempts nothing: the application below takes its root_path {quoted(root)} away from "
                f"paths; write {quoted(path.removeprefix(root))}",
            )


def _about_layers(middleware: Checked) -> Iterator[Finding]:
    """Yield the findings about other middlewares further in."""
    names = {rule.name for rule in middleware.rules} - {None}
    for layer in layers(middleware.app):
        if _is_cors(layer):
            yield Finding(
                "SG107",
                "CORSMiddleware stands inside RateLimitMiddleware, so scripts in browsers cannot read a 429; add it "
                "after RateLimitMiddleware, and it stands outside",
            )
        for name in sorted(names & {rule.name for rule in layer.rules}, key=str) if isinstance(layer, Checked) else ():
            yield Finding(
                "SG105",
                f"rule {name!r} stands in two middlewares, one inside the other; it is charged once: give them two "
                "names if they are two limits",
            )


def _is_cors(layer: object) -> bool:
    from starlette.middleware.cors import CORSMiddleware  # importing slidegate takes long enough

    if isinstance(layer, Starlette):
        # An application builds its middleware at its first request; before that only their classes are known.
        classes: list[object] = [wrapping.cls for wrapping in layer.user_middleware]
        return CORSMiddleware in classes
    return isinstance(layer, CORSMiddleware)


def _about_bans(policies: Collection[BanPolicy]) -> Iterator[Finding]:
    keyed = [policy for policy in policies if policy.key is not None and re.search(CLIENT_CHOOSES, policy.key.identity)]
    if keyed and not any(map(_bans_by_address, policies)):
        yield Finding(
            "SG113",
            f"policy {keyed[0].name!r} bans by {keyed[0].key.identity}, which the client chooses, and none bans by "
            'address; add one that does, such as BanPolicy("100/10m", name="addresses")',
        )


def _bans_by_address(policy: BanPolicy) -> bool:
    return policy.key is None or isinstance(policy.key, ClientAddress)


def many_workers(environment: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return the setting that starts several processes for the application; empty if there is none."""
    for variable in _VARIABLES:
        value = environment.get(variable, "")
        if value.isascii() and value.isdigit() and int(value) > 1:
            return f"{variable}={value}"
    from pathlib import Path  # nothing else needs it to serve

    program = Path(arguments[0]) if arguments else Path()
    shown = shlex.join(arguments[1:]) if {program.stem, program.parent.name} & _SERVERS else ""
    for where, words in (("GUNICORN_CMD_ARGS", environment.get("GUNICORN_CMD_ARGS", "")), ("the command line", shown)):
        counts = re.findall(_WORKERS, words)
        if counts and int(counts[-1]) > 1:
            return f"--workers {counts[-1]} in {where}"
    return ""


def hidden_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield (earlier, later) where the earlier rule ends the list for every request that the later one matches."""
    everywhere: list[int] = []
    index: PathIndex[int] = PathIndex()
    alike: dict[str, list[int]] = {}
    for place, later in enumerate(rules):
        # A rule that covers all paths covers the first one, and the text that it begins with.
        first = later.paths[0]
        ends = {*everywhere, *alike.get(_nameless(first), ()), *index.find(first.partition("{")[0])}
        earlier = next((rules[end] for end in sorted(ends) if _covers(rules[end], later)), None)
        if earlier is not None:
            yield earlier, later
        if not (later.final or later.blocks) or later.conditional:
            continue
        if not later.matchers:
            everywhere.append(place)
        for matcher in later.matchers:
            index.add((matcher.path, matcher.convertors), place)
            alike.setdefault(_nameless(matcher.path), []).append(place)


def _covers(earlier: Rule, later: Rule) -> bool:
    methods = frozenset({"GET"}) if later.connection == "websocket" else later.methods
    if earlier.connection is not None and earlier.connection != later.connection:
        return False
    if earlier.methods is not None and (methods is None or not methods <= earlier.methods):
        return False
    if not earlier.matchers or not later.matchers:
        return not earlier.matchers
    return all(any(_covers_path(own, asked) for own in earlier.matchers) for asked in later.matchers)


def _covers_path(own: PathMatcher, asked: PathMatcher) -> bool:
    if not asked.convertors:
        return own.exempts(asked.path)
    below = re.fullmatch(_ALL_BELOW, own.path)
    if below is not None and asked.path.partition("{")[0].startswith(below[1]):
        return True
    # The names of parameters do not matter.
    return _nameless(own.path) == _nameless(asked.path)


def _nameless(path: str) -> str:
    return re.sub(_PARAMETER, lambda found: f"{{{found[1] or 'str'}}}", path)


class StartupChecks:
    """Checks the first requests, and then no more.

    Args:
        client: How the middleware finds the client's address.
        policies: Its ban policies.
        store: The store of its limiter.
    """

    def __init__(self, client: ClientAddress, policies: Collection[BanPolicy] = (), store: Store | None = None) -> None:
        self._store = store
        self._trusted = client.trusted
        self._policies = [policy for policy in policies if _bans_by_address(policy)]
        self._left = WATCHED
        self._found: set[str] = set()

    @property
    def over(self) -> bool:
        """Whether enough requests were checked."""
        return self._left <= 0

    def look(self, scope: Scope) -> Iterator[Finding]:
        """Yield the findings that one request shows, each kind once."""
        self._left -= 1
        evicts = getattr(self._store, "evicts", "")  # known once a connection was made
        if evicts and self._is_new("SG115"):
            yield Finding("SG115", f"{evicts}, and with them limits and bans; set noeviction")
        if is_gone(scope):
            return
        client = scope.get("client")
        host = (client[0] if client else None) or ""
        if not host and self._is_new("SG109"):
            yield Finding(
                "SG109",
                f"the server names no peer: all such requests are one client, {UNKNOWN_PEER!r}; behind a proxy on a "
                'Unix socket write client_ip(trusted=["unix"])',
            )
        # A server that reads the header itself has put the address from it in the peer's place.
        own = host.encode(errors="surrogatepass")
        fields = [name for name, value in scope["headers"] if name in _PROXY_HEADERS and not (own and own in value)]
        if fields and not self._trusted and self._is_new("SG102"):
            yield Finding(
                "SG102",
                f"{fields[0].decode().title()} came with a request and no proxy is trusted: if one stands in front, "
                'all its clients are counted as one; name it, for example client_ip(trusted=["10.0.0.0/8"])',
            )
            if self._policies and host:
                yield self._about_bans(host)

    def look_back(self, scope: Scope, request: RequestLimits) -> Iterator[Finding]:
        """Yield what shows only after the application has served a request."""
        if request.userless and is_known(scope) and self._is_new("SG116"):
            yield Finding(
                "SG116",
                "a limit by `user` counted the client's address, because the user was known only afterwards; put "
                "AuthenticationMiddleware further out than RateLimitMiddleware, or the limit next to the endpoint: "
                "@RateLimit(..., key=user)",
            )

    def _is_new(self, code: str) -> bool:
        """Return whether a kind of finding has not been found before; it has been now."""
        new = code not in self._found
        self._found.add(code)
        return new

    def _about_bans(self, host: str) -> Finding:
        """Return the finding about bans behind a proxy that is not trusted."""
        met = [policy for policy in self._policies if ban_target(policy, host) is not None]
        if met:
            what = f"policy {met[0].name!r} bans the peer for what one client does: everybody behind it is shut out"
        else:
            what = f"the peer {host} is of a private network, which no policy bans: nobody behind it is ever banned"
        return Finding(
            "SG111", f'if a proxy stands in front, {what}; name it, for example client_ip(trusted=["10.0.0.0/8"])'
        )
