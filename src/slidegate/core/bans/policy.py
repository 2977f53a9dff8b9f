"""The options of a ban policy, validated at construction; `strikes` explains their effect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from ..addresses import format_network, network_of, prefix_length, resembles_address
from ..arguments import check_name, check_whole
from ..buckets import Bucket
from ..durations import format_duration, parse_duration_us
from ..errors import ConfigurationError, InvalidKey, closest, quoted
from ..limit_texts import parse_limits
from ..limits import MAX_WINDOW_US, Limit
from ..networks import AnyNetworks, Networks, networks_of
from ..options import options_checked
from .ban import ban_key, network_place

MAX_EXACT: Final = 64
"""The most strikes whose exact times are stored."""
STRIKES: Final = "strikes;"
"""How the names of buckets of strikes begin; no name of a rule contains a semicolon."""

Weight: TypeAlias = int | Literal["ban"]
Signals: TypeAlias = Mapping[Any, Weight]
"""Weights by signals, each text or a status; with `str | int` in place of `Any`, a `dict[str, int]` would be none."""

SIGNAL: Final = "refused"
"""The signal of a refusal by a limit; the other signals are statuses and paths."""

PRIVATE: Final = Networks(
    [
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    ]
)
"""Loopback (RFC 1122, 4291), private (RFC 1918, 4193), shared (RFC 6598) and link-local (RFC 3927, 4291) addresses."""

REGISTRY: Final = {4: 8, 6: 19}
"""Prefix lengths of the widest networks that registries allocate."""
WIDEST: Final = {4: 24, 6: 48}
"""Prefix lengths of the widest network of one customer: a /48 (RFC 6177), or a /24, the smallest that is routed. A
wider network that is struck is not a client: a user may have chosen the name 192.0.0.0/16."""

# Patterns are texts, which `re` compiles at their first use: a compiled one takes a share of the import.
_DIGESTED: Final = ("header", "cookie", "query", "path")
"""The kinds of keys whose values are digested."""
_DIGEST: Final = r"(?s)(header:[^A-Z]*|(cookie|query|path):.*)#[0-9a-f]{32}"
"""Names of header fields are in small letters."""
_WEEK_US: Final = 7 * 86_400_000_000
_MAX_FACTOR: Final = 1_000
_MIN_FACTOR: Final = 1.1


class BanPolicy:
    """Bans keys that keep abusing the service. Immutable.

    Args:
        after: How many strikes, within which time, cause a ban: ``"20/10m"``.
        duration: How long the first ban lasts, 1 s to 400 days.
        factor: How many times longer each further ban lasts: 1, or 1.1 to 1000.
        longest: The longest ban; by default 7 days, or `duration` if that is longer.
        forgive: How long after the end of its last ban the level of a key falls by one, each time.
        signals: The weight of each signal: ``"refused"``, a status (404, ``"4xx"``) or a path (``"/.env"``). The status
            is that of the application, a path is written as in a rule. A weight is a whole number, or ``"ban"`` for an
            immediate ban. `strike` works without being listed here.
        name: The name of the policy; policies with the same name share their levels, and their strikes if
            `after` has the same window.
        key: The key that is struck and banned, such as `header`; by default the client's address.
        shadow: Report bans without enforcing them.
        status: The status of the response to a banned client, 403 or 429.
        ban_private: Ban loopback, private and link-local addresses, too.
        exempt: Networks whose clients never strike and that are never banned, though limits hold for them:
            ``["198.51.100.0/24"]``, or `Networks`. The client's address decides, whatever `key` is.
        when: A sync or async function of the request (without its body), or a condition such as
            ``networks.has_client()``: only requests for which it is true strike, by whichever signal. If it fails, they
            strike. `Limiter.strike` has no request, and does not ask it.

    Raises:
        ConfigurationError: A value is invalid; the message suggests a valid one.
    """

    @options_checked
    def __init__(
        self,
        after: str | Limit = "20/10m",
        duration: str | timedelta = "1h",
        *,
        factor: float = 4,
        longest: str | timedelta | None = None,
        forgive: str | timedelta = "24h",
        signals: Signals | None = None,
        name: str = "abuse",
        key: Any = None,
        shadow: bool = False,
        status: int = 403,
        ban_private: bool = False,
        exempt: AnyNetworks = (),
        when: Any = None,
    ) -> None:
        self.name = check_name(name, "ban policy name")
        self.label = f"bans.{name}"
        self.after = _one_limit(after)
        self._set_ladder(duration, factor, longest)
        self.forgive_us = _span_us(forgive, "forgive", "24h")
        if signals is None:
            signals = {"refused": 1}
        self.signals = _check_signals(signals)
        self.key = key
        self.shadow = shadow
        if not isinstance(status, int) or status not in (403, 429):
            raise ConfigurationError(f"expected 403 or 429, not {quoted(status)}", "status")
        self.status = status
        self.strikes = Bucket(f"{STRIKES}{name}", [_counting(self.after)])
        """The window of its strikes."""
        self.exempt: Networks = networks_of(exempt, "exempt")
        self.when = when
        # Set last: from now on the policy is immutable.
        self.ban_private = ban_private

    def __setattr__(self, field: str, value: object) -> None:
        if "ban_private" in self.__dict__:
            raise AttributeError(f"a BanPolicy is immutable; create another one instead of setting {field}")
        super().__setattr__(field, value)

    def __repr__(self) -> str:
        return f"<BanPolicy {self.name!r} after {self.after}, {format_duration(self.duration_us)}>"

    def length_us(self, level: int) -> int:
        """Return the duration of the ban on a level, from 1, in microseconds."""
        try:
            return min(int(self.duration_us * float(self.factor) ** (level - 1)), self.longest_us)
        except OverflowError:
            return self.longest_us

    def _set_ladder(self, duration: Any, factor: Any, longest: Any) -> None:
        self.duration_us = _span_us(duration, "duration", "1h")
        self.longest_us = max(_WEEK_US, self.duration_us) if longest is None else _span_us(longest, "longest", "7d")
        if self.longest_us < self.duration_us:
            raise ConfigurationError(
                f"{quoted(longest)} must not be shorter than duration, {quoted(duration)}", "longest"
            )
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not is_number or not (factor == 1 or _MIN_FACTOR <= factor <= _MAX_FACTOR):
            raise ConfigurationError(f"expected 1, or {_MIN_FACTOR} to {_MAX_FACTOR}, not {quoted(factor)}", "factor")
        self.factor: float = factor


def _one_limit(after: str | Limit) -> Limit:
    try:
        limits = parse_limits(after)
    except ConfigurationError as error:
        raise ConfigurationError(error.text, "after") from None
    if len(limits) != 1 or not isinstance(limits[0], Limit):
        raise ConfigurationError(f'expected one limit, for example "20/10m", not {quoted(after)}', "after")
    return limits[0]


def _counting(after: Limit) -> Limit:
    """Return a limit that counts strikes: none of them longer than the window, but up to a slice less."""
    limit = Limit(after.amount, timedelta(microseconds=after.window_us), resolution=MAX_EXACT)
    amount, step_us, _ = limit.counter.terms
    span_us = after.window_us - step_us + 1
    limit.counter.terms = amount, step_us, span_us
    limit._fill(life_us=span_us, check_us=span_us)  # so that stores know when a window of strikes is empty
    return limit


def _span_us(value: Any, option: str, example: str) -> int:
    return parse_duration_us(value, option, 1_000_000, MAX_WINDOW_US, example)


def _check_signals(signals: Signals) -> Mapping[str | int, Weight]:
    checked: dict[str | int, Weight] = {}
    for signal, weight in signals.items():
        name: str | int = signal
        # TOML has only texts as keys.
        if isinstance(signal, str) and re.fullmatch("[0-9]{3}", signal):
            name = int(signal)
        if not _is_signal(name):
            hint = closest(signal, [SIGNAL])
            raise ConfigurationError(
                f'expected a status from 100 to 599, a class such as "4xx", a path or "{SIGNAL}", not '
                f'{quoted(signal)}; for example {{"refused": 1, 401: 1, "/wp-login.php": "ban"}}{hint}',
                "signals",
            )
        if weight != "ban":
            check_whole(weight, 1, 1_000_000, f"signals: weight of {quoted(signal)}", 'or "ban", for example 1')
        checked[name] = weight
    return MappingProxyType(checked)


def _is_signal(signal: object) -> bool:
    if isinstance(signal, str):
        return signal == SIGNAL or signal.startswith("/") or re.fullmatch("[1-5]xx", signal) is not None
    return isinstance(signal, int) and not isinstance(signal, bool) and 100 <= signal <= 599


def hand_ban_key(key: object) -> str:
    """Return the canonical spelling of a key that is banned by hand; see `ban_key`.

    Raises:
        InvalidKey: `ban_key` rejects it, it is that of a header, cookie or parameter without a digest, it is nearly an
            address, or it is a network wider than an IPv4 /8 or an IPv6 /19.
    """
    spelled = ban_key(key)
    place = network_place(spelled)
    if place is None:
        # An account, or the digest of an API key. A value without a digest is not repeated, as it may be a secret.
        kind, _, _ = spelled.partition(":")
        if kind.lower() in _DIGESTED and not re.fullmatch(_DIGEST, spelled):
            raise InvalidKey(
                f"ban: no request is counted under this {quoted(kind)} key, because values that clients send are "
                'stored as digests; write for example header("X-API-Key").of(VALUE)'
            )
        if spelled != spelled.strip() or resembles_address(spelled):
            example = 'for example "203.0.113.7", "203.0.113.0/24" or "2001:db8::/48"'
            raise InvalidKey(
                f"ban: expected an address or a network, {example}, or another key without blanks around it, not "
                f"{quoted(key)}"
            )
        return spelled
    version, prefix, _ = place
    widest = REGISTRY[version]
    if prefix < widest:
        raise InvalidKey(
            f"ban: {quoted(key)} is wider than an IPv{version} /{widest}, the largest block that a registry has; "
            'ban smaller networks, for example "192.0.2.0/24"'
        )
    return spelled


def with_wider_networks(key: str) -> list[str]:
    """Return the canonical key of a ban, after those of all networks that contain it."""
    network = network_of(key)
    if network is None:
        return [key]
    version, first, last = network
    prefixes = range(REGISTRY[version], prefix_length(version, first, last))
    return [*(format_network(version, first, prefix) for prefix in prefixes), key]


def may_ban(policy: BanPolicy, key: str, protected: Iterable[Networks] = ()) -> bool:
    """Return whether a policy may ban a key.

    Args:
        key: The key in its canonical spelling.
        protected: Trusted proxies and the allowlist; no network that overlaps one of these is banned.
    """
    network = network_of(key)
    if network is None:
        # An account, or an API key.
        return True
    version, first, last = network
    if prefix_length(version, first, last) < WIDEST[version]:
        return False
    spared = [policy.exempt, *protected]
    if not policy.ban_private:
        spared.append(PRIVATE)
    return not any(networks.overlaps(version, first, last) for networks in spared)
