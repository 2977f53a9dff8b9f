"""What a worker publishes of its rules, so that operators and their tools see what is enforced.

The text of the rules stands in the store under its digest, in parts that are written and read one at a time: a head,
and lines of JSON. Equal workers have one text::

    kind       number           worker     value
    rules      digest           0          {"version": 1, "secret": "fingerprint#9f...", "parts": 2}
    rules      digest + 1       0          one line for each of the first rules: {"name": "api", "limit": "50/1m", ...}
    rules      digest + 2       0          one line for each of the others
    workers    0                worker     16 bytes: the digest, and the time

Fields are read by name: those that a later version adds are ignored, and of those that an earlier one leaves out the
defaults apply. The secret is a digest of a constant that is keyed with it: it shows only whether two secrets are equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

from ..core.errors import ConfigurationError
from .named_limits import NamedLimit, parse_one, text_of_limit

VERSION: Final = 1
PART: Final = 25
"""How many rules are in a part: at 10 to 80 us for each, writing or reading one takes two milliseconds at most."""
_PART_BITS: Final = 10
MOST_RULES: Final = PART * (2**_PART_BITS - 1)
LIFE: Final = Struct(">qq")
"""The digest of the text of a worker's rules, and when it wrote that, in microseconds."""


@dataclass(frozen=True, slots=True)
class PublishedRule:
    """One limit of a rule, or a rule without limits, as its worker has published it.

    Attributes:
        name: The name of the limit in header fields; empty without a limit.
        limit: The limit as configured in code, ``50/1m``; empty without one.
        rule: The label of the rule.
        key: The kind of key that it reads: ``address``, ``everyone``, ``user``, ``header:X-API-Key``, several with
            ``+`` between them, or ``function``.
        action: ``limit``, ``block``, ``exempt``, ``honeypot``, ``ban`` for a policy of bans, ``blocklist`` or
            ``allowlist`` for some of its ranges, or ``client`` for how a middleware determines clients.
        shadow: Whether it reports and never refuses.
        by_function: Whether a function of the application's returns the limit, which is the fallback then.
        order: Its place among the rules of its middleware.
        middleware: The name of its middleware.
        bucket: The name of its windows in the store, as `Limiter.inspect` takes it.
        requests: Which requests it concerns: methods and paths as they were written, ``POST /login``, or the route;
            empty for all.
        conditional: Whether a condition decides if it concerns a request.
        final: Whether no later rule concerns its requests.
        at_endpoint: Whether it is a limit at an endpoint, or of messages, which no rule of the middleware exempts from.
        cost: The units of a request.
        cost_by_function: Whether a function returns them.
        wait_us: How long a request may wait for room.
        ipv4_prefix: The prefix length of the networks that it counts or bans as one client.
        ipv6_prefix: The same for IPv6.
        leased: Whether workers may have units of it charged ahead, and admit requests with them.
        durations: Of a policy of bans how long the first, the second and further bans last: ``1h 4h 16h 64h 7d``.
        ranges: Of a list some ranges of addresses: ``4:cb007100-cb0071ff``, with the version in front.
        size: Of a list how many ranges it has; `ranges` are empty if they are too many to be published.
    """

    name: str = ""
    limit: str = ""
    rule: str = ""
    key: str = ""
    action: str = "limit"
    shadow: bool = False
    by_function: bool = False
    order: int = 0
    middleware: str = ""
    bucket: str = ""
    requests: str = ""
    conditional: bool = False
    final: bool = False
    at_endpoint: bool = False
    cost: int = 1
    cost_by_function: bool = False
    wait_us: int = 0
    ipv4_prefix: int = 32
    ipv6_prefix: int = 64
    leased: bool = False
    durations: str = ""
    ranges: str = ""
    size: int = 0

    def named(self) -> NamedLimit:
        """Return its limit."""
        limit = parse_one(self.limit)
        return NamedLimit(self.name, limit, limit, self.rule, changeable=not self.by_function, shadow=self.shadow)


NAMES: Final = tuple(one.name for one in fields(PublishedRule))
"""The names of its fields."""
_DEFAULTS: Final = PublishedRule()


class PublishedRules:
    """The rules of one text, which equal workers have in common.

    Args:
        rules: The rules.

    Attributes:
        rules: The rules, in order.
        limits: The limits as configured in code, by their names in header fields: ``{"api": "50/1m"}``.
        changeable: The names of limits that `Limiter.override` can change.
    """

    def __init__(self, rules: Iterable[PublishedRule]) -> None:
        self.rules = tuple(rules)
        self._by_name: dict[str, list[PublishedRule]] = {}
        for rule in self.rules:
            if rule.limit:
                self._by_name.setdefault(rule.name, []).append(rule)
        self.limits = {name: having[0].limit for name, having in self._by_name.items()}
        self.changeable = {rule.name for rule in self.rules if rule.limit and not rule.by_function}

    def having(self, name: str) -> Sequence[PublishedRule]:
        """Return the rules with a limit of this name."""
        return self._by_name.get(name, ())


NO_RULES: Final = PublishedRules(())


@dataclass(frozen=True, slots=True)
class Publication:
    """What some equal workers have published.

    Attributes:
        workers: How many workers these are, by what they wrote within the last minute.
        text: Their rules; none if `is_readable` is false.
        same_secret: Whether their digests of API keys and similar values are those of this limiter.
        is_readable: Whether the text of the rules was there, and this version can read it.
    """

    workers: int
    text: PublishedRules = field(repr=False)
    same_secret: bool = True
    is_readable: bool = True


def rules_of(limits: Iterable[NamedLimit], **shared: Any) -> list[PublishedRule]:
    """Return what is published of the limits of one rule.

    Args:
        limits: The limits.
        shared: Further fields, which all of them have.
    """
    found = []
    for one in limits:
        text = text_of_limit(one.configured)
        found.append(
            PublishedRule(one.name, text, one.rule, shadow=one.shadow, by_function=not one.changeable, **shared)
        )
    return found


# -- texts -------------------------------------------------------------------------------------------------------------


def part_of(rules: Iterable[PublishedRule]) -> bytes:
    """Return the lines of some rules; a field with its default value is left out."""
    lines = []
    for rule in rules:
        said = {name: value for name in NAMES if (value := getattr(rule, name)) != getattr(_DEFAULTS, name)}
        lines.append(json.dumps(said, ensure_ascii=False))
    return "\n".join(lines).encode()


def rules_in(part: bytes) -> list[PublishedRule]:
    """Return the rules of a part, without lines that this version cannot read."""
    found = []
    for line in part.splitlines():
        try:
            found.append(_rule_in(json.loads(line)))
        except (ValueError, TypeError, AttributeError, RecursionError, ConfigurationError):
            continue  # of a kind that a later version has added
    return found


def _rule_in(said: dict[str, Any]) -> PublishedRule:
    """Return the rule of a line.

    Raises:
        TypeError: A field has another type.
        ConfigurationError: Its limit is of another kind.
    """
    known = {name: said[name] for name in NAMES if name in said}
    for name, value in known.items():
        if type(value) is not type(getattr(_DEFAULTS, name)):
            raise TypeError(name)
    rule = PublishedRule(**known)
    if rule.limit:
        parse_one(rule.limit)
    return rule


def head_of(secret: str, parts: int) -> bytes:
    """Return the head of a text."""
    return json.dumps({"version": VERSION, "secret": secret, "parts": parts}).encode()


class Head(NamedTuple):
    """What stands at the head of a text.

    Attributes:
        fingerprint: That of the secret.
        parts: How many parts the text has.
    """

    fingerprint: str
    parts: int


def head_in(head: bytes) -> Head:
    """Return what a head says.

    Raises:
        ValueError: It is no head.
    """
    try:
        said = json.loads(head)
        secret, parts = said["secret"], said["parts"]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no head: {error!r}") from None
    if not isinstance(secret, str) or not isinstance(parts, int) or not 0 <= parts < 2**_PART_BITS:
        raise ValueError("no head")
    return Head(secret, parts)


def digest_of(head: bytes, parts: Iterable[bytes]) -> int:
    """Return the number of the head of a text; those of its parts follow.

    It has 62 bits, as many as a row's number may have. The last ten are 0, for the numbers of the parts.
    """
    made = blake2b(head, digest_size=8)
    for part in parts:
        made.update(b"\n" + part)
    return int.from_bytes(made.digest()) >> (_PART_BITS + 2) << _PART_BITS
