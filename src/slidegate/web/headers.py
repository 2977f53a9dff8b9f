"""Header fields: writes those that inform a client of its limits, and reads and checks those that others wrote.

RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11 and the syntax of RFC 9651. Everything in
them but the current numbers is rendered once and cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from starlette.types import Scope

from ..core.concurrency import Concurrency
from ..core.decision import Bucket, Check, Decision, Reason, ceil_s, tightest_first, unequal_costs, unique_name
from ..core.draft_parameters import AMOUNT, MORE_AFTER_S, REMAINING, UNIT, WINDOW_S
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit
from ..core.memo import remember
from ..core.quotas import Quota
from ..core.ring import WindowState
from ..limiter import system_us

if TYPE_CHECKING:
    from .exchange import Entry

HeaderStyle: TypeAlias = Literal["draft", "legacy", "both"]
Buckets: TypeAlias = Bucket | tuple[Bucket, ...]
Field: TypeAlias = Any
"""A field as an application wrote it: a tuple or list of name and value, each bytes or a similar type."""
Fields: TypeAlias = list[tuple[bytes, bytes]]
"""Fields that this package wrote or has checked."""

_DRAFT: Final = frozenset({b"ratelimit", b"ratelimit-policy"})
_LEGACY: Final = frozenset({b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"})
NOT_STORED: Final = (b"cache-control", b"no-store")
"""Keeps refusals out of caches."""
MAX_FIELD: Final = 8_192
"""The most characters of a field that are read, counted from the right end, where trusted proxies append."""
MAX_SHOWN: Final = 4
"""How many limits RateLimit lists, the tightest first; RateLimit-Policy lists all."""
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""A value of RFC 9110, section 5.5. Servers reject control characters or, worse, send the field after a line break."""

_FEW: Final = 4_096
_NUMBERS: Final = tuple([b"%d" % number for number in range(_FEW)])
"""Small numbers, formatted in advance: in compiled code a look-up is faster than formatting."""

_MORE: Final = f";{MORE_AFTER_S}=".encode()


class _Item:
    """The item of RateLimit for one limit.

    Args:
        limit: The limit.
        name: Its name in this response.
    """

    __slots__ = ("amount", "limit", "start", "timed")

    def __init__(self, limit: AnyLimit, name: str) -> None:
        self.limit = limit
        self.amount = limit.amount
        self.start = f"{quote(name)};{REMAINING}=".encode()
        self.timed = not isinstance(limit, Concurrency)  # the release time of a permit is unknown

    def value(self, reading: WindowState, now_us: int) -> bytes:
        """Return the item with its current numbers."""
        spent, leaves_us, _, _ = reading
        left = self.amount - spent if self.amount > spent else 0
        value = self.start + (_NUMBERS[left] if left < _FEW else b"%d" % left)
        if not self.timed:
            return value
        more_s = (leaves_us - now_us + 999_999) // 1_000_000 if spent else 0
        return value + _MORE + (_NUMBERS[more_s] if 0 <= more_s < _FEW else b"%d" % more_s)


class _Rendered:
    """Everything in the fields that depends only on the buckets of a request.

    Args:
        buckets: The buckets.
    """

    __slots__ = ("amounts", "items", "policy")

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        limited = [(limit, bucket.unit) for bucket in buckets for limit in bucket.limits]
        named = [(name, *one) for name, one in zip(distinct_names(buckets), limited, strict=True)]
        self.items = [_Item(limit, name) for name, limit, _ in named]
        self.policy: Field = b"ratelimit-policy", ", ".join([_policy_item(*item) for item in named]).encode()
        self.amounts = [item.amount for item in self.items]


class HeaderWriter:
    """Writes the fields that inform a client of its limits.

    Args:
        style: ``"draft"`` for RateLimit and RateLimit-Policy, ``"legacy"`` for X-RateLimit-Limit, -Remaining and
            -Reset (Unix seconds), ``"both"``, or None for no fields.

    Attributes:
        style: The same.

    Raises:
        ConfigurationError: There is no such style.
    """

    def __init__(self, style: HeaderStyle | None) -> None:
        if style not in ("draft", "legacy", "both", None):
            raise ConfigurationError(f'expected "draft", "legacy", "both" or None, not {quoted(style)}', "headers")
        self.style = style
        self._draft = style in ("draft", "both")
        self._legacy = style in ("legacy", "both")
        self._own = (_DRAFT if self._draft else frozenset()) | (_LEGACY if self._legacy else frozenset())
        self._known: dict[Buckets, _Rendered] = {}

    def add(self, theirs: Iterable[Field], decision: Decision) -> list[Field]:
        """Return the fields of a response, the application's first. RateLimit shows the tightest limits.

        Fields of the application with the same names are replaced.

        Args:
            theirs: The application's fields.
            decision: The decision about the request. Without limits, no fields are added.
        """
        fields: list[Field] = [*theirs]
        checks, readings, now_us = decision.checks, decision.readings, decision.now_us
        if not readings or not self._own:
            return fields
        for field in fields:
            # The lengths of our names. Compare these first: lower-casing every field name is slower.
            if len(field[0]) in (9, 16, 17, 21):
                fields = [field for field in fields if lowered(field[0]) not in self._own]
                break
        asked = checks[0][0] if len(checks) == 1 else asked_buckets(checks)
        rendered = self._known.get(asked) or self._render(asked)
        for item in rendered.items:
            if item.amount != item.limit.amount:  # an operator has changed it since
                rendered = self._render(asked)
                break
        first, items = 0, rendered.items
        if len(items) == 1:
            value = items[0].value(readings[0], now_us)
        else:
            costs = () if len(checks) == 1 else unequal_costs(checks)
            order = tightest_first(rendered.amounts, readings, costs)
            value = b", ".join([items[at].value(readings[at], now_us) for at in order[:MAX_SHOWN]])
            first = order[0]
        if self._draft:
            fields.append(rendered.policy)
            fields.append((b"ratelimit", value))
        if self._legacy:
            fields += _legacy_fields(items[first].limit, readings[first], now_us)
        return fields

    def _render(self, asked: Buckets) -> _Rendered:
        return remember(self._known, asked, _Rendered((asked,) if isinstance(asked, Bucket) else asked))


def add_several(theirs: Iterable[Field], entries: Sequence[Entry]) -> list[Field]:
    """Return the fields of a response with several decisions, each in the style of its middleware."""
    limited = [entry for entry in entries if entry[1].readings]
    if len(limited) == 1:
        parts, decision = limited[0]
        return parts.headers.add(theirs, decision)
    fields = [*theirs]
    for style in ("draft", "legacy"):
        shown = [decision for parts, decision in limited if parts.headers.style in (style, "both")]
        if shown:
            fields = _writer(style).add(fields, _joined(shown))
    return fields


@cache
def _writer(style: HeaderStyle) -> HeaderWriter:
    return HeaderWriter(style)


def _joined(decisions: Sequence[Decision]) -> Decision:
    """Return several decisions as one, with all times converted to the clock of the first one's store."""
    if len(decisions) == 1:
        return decisions[0]
    now_us = decisions[0].now_us
    checks = [check for decision in decisions for check in decision.checks]
    readings = [
        (spent, leaves_us + now_us - decision.now_us, newest_us + now_us - decision.now_us, wait_us)
        for decision in decisions
        for spent, leaves_us, newest_us, wait_us in decision.readings
    ]
    return Decision(True, Reason.OK, now_us, checks, readings)


def quote(text: str) -> str:
    """Write printable ASCII as a string of RFC 9651, section 3.3.3."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def distinct_names(buckets: Iterable[Bucket]) -> list[str]:
    """Return the name of each limit in an answer; a repeated name gets a number."""
    names: list[str] = []
    for bucket in buckets:
        for name in bucket.names:
            names.append(unique_name(name, names))
    return names


def asked_buckets(checks: Sequence[Check]) -> Buckets:
    """Return the buckets of a decision, as the cache key of their fields and answers."""
    return checks[0][0] if len(checks) == 1 else tuple([bucket for bucket, _, _ in checks])


def lowered(name: Any) -> bytes:
    """Return a field name as lower-case bytes, as ASGI requires, in whatever type an application wrote it."""
    return name.encode("latin-1", "replace").lower() if isinstance(name, str) else bytes(name).lower()


def field_value(scope: Scope, name: bytes) -> str:
    """Return all values of a header joined in order (RFC 9110, section 5.3); only the last `MAX_FIELD` characters."""
    value: bytes = b",".join([field[1] for field in scope["headers"] if field[0] == name])
    return value[-MAX_FIELD:].decode("latin-1")


def completed(headers: Iterable[Field], needed: Iterable[tuple[bytes, bytes]]) -> list[Field]:
    """Return header fields, with the missing ones of `needed` appended."""
    present = [*headers]
    names = {lowered(name) for name, _ in present}
    return [*present, *(field for field in needed if field[0] not in names)]


def sendable(headers: Iterable[Field]) -> tuple[Fields, list[object]]:
    """Return the fields that can be sent, and those that cannot."""
    good: Fields = []
    bad: list[object] = []
    for field in headers:
        try:
            name, value = (bytes(memoryview(part)) for part in field)
        except (TypeError, ValueError):
            bad.append(field)
            continue
        value = value.strip(b" \t")  # blanks around a value are not part of it, and h11 rejects them
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            good.append((name, value))
        else:
            bad.append(field)
    return good, bad


def _policy_item(name: str, limit: AnyLimit, unit: str | None) -> str:
    """Format one item of RateLimit-Policy: ``"api";q=100;w=10``. The window is omitted unless it is whole seconds."""
    unit = "concurrent-requests" if isinstance(limit, Concurrency) else unit
    item = f"{quote(name)};{AMOUNT}={limit.amount}" + ("" if unit is None else f";{UNIT}={quote(unit)}")
    return item if limit.window_s is None else f"{item};{WINDOW_S}={limit.window_s}"


def _legacy_fields(limit: AnyLimit, reading: WindowState, now_us: int) -> Fields:
    """Return the X-RateLimit-* fields; -Reset is omitted for permits, whose release time is unknown."""
    amount, left = limit.amount, max(limit.amount - reading[0], 0)
    fields = [(b"x-ratelimit-limit", b"%d" % amount), (b"x-ratelimit-remaining", b"%d" % left)]
    if not isinstance(limit, Concurrency):
        fields.append((b"x-ratelimit-reset", b"%d" % _reset_s(limit, reading, now_us)))
    return fields


def _reset_s(limit: AnyLimit, reading: WindowState, now_us: int) -> int:
    """Return the Unix second at which all spent units have left the window."""
    spent, _, newest_us, _ = reading
    reset_after_us = max(newest_us + limit.span_us - now_us, 0) if spent else 0
    if isinstance(limit, Quota):
        # Periods end on a full minute, and the decision was made slightly before now: rounding corrects for that.
        return round((system_us() + reset_after_us) / 1_000_000)
    return system_us() // 1_000_000 + ceil_s(reset_after_us)
