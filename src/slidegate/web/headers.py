"""Header fields: writes those that inform a client of its limits, and reads and checks those that others wrote.

RateLimit and RateLimit-Policy follow draft-ietf-httpapi-ratelimit-headers-11 and the syntax of RFC 9651. Both list the
limits in the order of the rules. Everything but the current numbers is rendered once for each set of buckets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from starlette.types import Message, Scope

from ..core.buckets import Bucket, Check, unique_name
from ..core.decision import Decision
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit, Concurrency
from ..core.memo import remember
from ..core.readings import ceil_s, tightest_of
from ..core.ring import WindowState
from ..core.store import Clock

HeaderStyle: TypeAlias = Literal["draft", "legacy"]
HeaderStyles: TypeAlias = HeaderStyle | Sequence[HeaderStyle]
Field: TypeAlias = Any
"""A field as an application wrote it: a tuple or list of name and value, each bytes or a similar type."""
Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Fields that this package wrote or has checked."""

MOST_NAMED: Final = 8
"""The most limits that one middleware names in an answer."""
MAX_FIELD: Final = 8_192
"""The most characters of a field that are read, counted from the right end, where trusted proxies append."""

_NAME: Final = re.compile(r'"([\w.]+)";q=')


class Rendered:
    """What the fields and the refusals of some buckets have in common, whatever the numbers are.

    Args:
        taken: The names in the fields of middlewares within.

    Attributes:
        names: The name of each limit in an answer; one that is taken or repeated gets a number.
    """

    def __init__(self, buckets: Sequence[Bucket], taken: Sequence[str] = ()) -> None:
        self.limits: list[AnyLimit] = []
        self.names: list[str] = []
        self._policies: list[str] = []
        self._items: list[bytes] = []
        for bucket in buckets:
            for wire_name, limit in zip(bucket.names, bucket.limits, strict=True):
                name = unique_name(wire_name, [*taken, *self.names])
                self.names.append(name)
                self.limits.append(limit)
                self._policies.append(_policy_item(name, limit, bucket.unit))
                self._items.append(_item(name, limit))
        self._policy: Field = b"ratelimit-policy", ", ".join(self._policies).encode()
        self._text = b", ".join(self._items)
        self._amounts = [limit.amount for limit in self.limits]

    def added_to(self, message: Message, decision: Decision) -> Message:
        """Return the first message of a response with RateLimit-Policy and RateLimit behind its other fields.

        Args:
            message: The message, which an application may send several times, so that it stays as it is.
            decision: The decision that RateLimit shows; without readings there is nothing to show.
        """
        if not decision.readings:
            return message
        current = b"ratelimit", self._text % _numbers(decision, decision.readings, self._amounts)
        message = message.copy()  # type: ignore[attr-defined]  # {**message} takes 50 ns more
        message["headers"] = [*message.get("headers", ()), self._policy, current]
        return message


class _OneLimit(Rendered):
    """The same for one limit, which most requests have."""

    def __init__(self, buckets: Sequence[Bucket], taken: Sequence[str]) -> None:
        super().__init__(buckets, taken)
        (self._amount,) = self._amounts

    def added_to(self, message: Message, decision: Decision) -> Message:
        if not decision.readings:
            return message
        spent, leaves_us, _, _ = decision.readings[0]
        left = self._amount - spent
        if left < 0:
            left = 0  # a debt is no number of units; `max` would be a call
        more_s = 0
        if spent:
            # `ceil_s` of the time until then, without a call: minus the floor of what is negative.
            more_s = -((decision.now_us - leaves_us) // 1_000_000)
        message = message.copy()  # type: ignore[attr-defined]
        message["headers"] = [*message.get("headers", ()), self._policy, (b"ratelimit", self._text % (left, more_s))]
        return message


class Headers:
    """Writes the fields that inform a client of the limits of one middleware.

    Args:
        style: ``"draft"`` for RateLimit and RateLimit-Policy, ``"legacy"`` for X-RateLimit-Limit, -Remaining and
            -Reset (Unix seconds), both in a tuple, or None for no fields.
        unix_us: Returns Unix time in microseconds.

    Attributes:
        styles: The styles; one that is None for no fields.

    Raises:
        ConfigurationError: There is no such style.
    """

    def __init__(self, style: HeaderStyles | None, unix_us: Clock) -> None:
        self._unix_us = unix_us
        self.styles: Sequence[Any] = (style,)
        if isinstance(style, (list, tuple)):
            self.styles = style
        if not self.styles or any(each not in ("draft", "legacy", None) for each in self.styles):
            expected = 'expected "draft", "legacy", a list of both, or None ("none" in a file)'
            raise ConfigurationError(f"{expected}, not {quoted(style)}", "headers")
        self._rendered: dict[object, Rendered] = {}

    def render(self, checks: Sequence[Check], taken: Sequence[str] = ()) -> Rendered:
        """Return what the answers to all requests with these checks have in common.

        Args:
            checks: The checks; without any there are no fields.
            taken: The names in the fields of middlewares within.
        """
        memo_key = (*[bucket for bucket, _, _ in checks], *taken)
        memo = self._rendered
        rendered = memo.get(memo_key)
        if rendered is None:
            rendered = remember(memo, memo_key, self._new([bucket for bucket, _, _ in checks], taken))
        return rendered

    def _new(self, buckets: Sequence[Bucket], taken: Sequence[str]) -> Rendered:
        limits = sum([len(bucket.limits) for bucket in buckets])
        if {*self.styles} != {"draft"} or limits > MOST_NAMED:
            return _InStyles(buckets, taken, self.styles, self._unix_us)
        # Nearly every answer has the draft's fields alone, so they are written in as few steps as their number allows.
        if limits == 1:
            return _OneLimit(buckets, taken)
        return Rendered(buckets, taken)

    def forget(self) -> None:
        """Render everything again, because amounts have changed."""
        self._rendered = {}  # a new dict: what another thread renders meanwhile goes into the old one


class _InStyles(Rendered):
    """The same for any styles, for no fields at all, or for more limits than are named: the tightest ones are."""

    def __init__(
        self, buckets: Sequence[Bucket], taken: Sequence[str], styles: Sequence[HeaderStyle], unix_us: Clock
    ) -> None:
        super().__init__(buckets, taken)
        self._styles = styles
        self._unix_us = unix_us

    def added_to(self, message: Message, decision: Decision) -> Message:
        """Return it; X-RateLimit-* of the limit that refuses, or that admits the fewest further requests.

        These are of the innermost middleware: what is there already stays.
        """
        if not decision.readings:
            return message
        fields: list[Field] = [*message.get("headers", ())]
        if "draft" in self._styles:
            tightest = tightest_of(decision.checks, decision.readings, MOST_NAMED)
            policy = ", ".join([self._policies[index] for index in tightest]).encode()
            text = b", ".join([self._items[index] for index in tightest])
            readings = [decision.readings[index] for index in tightest]
            amounts = [self._amounts[index] for index in tightest]
            fields += (b"ratelimit-policy", policy), (b"ratelimit", text % _numbers(decision, readings, amounts))
        if "legacy" in self._styles and all(lowered(field[0]) != b"x-ratelimit-limit" for field in fields):
            fields += _legacy_fields(decision, self._unix_us())
        return {**message, "headers": fields}


def quote(text: str) -> str:
    """Write printable ASCII as a string of RFC 9651, section 3.3.3."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def lowered(name: Any) -> bytes:
    """Return a field name as lower-case bytes, as ASGI requires, in whatever type an application wrote it."""
    return _as_bytes(name).lower()


def _as_bytes(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode("latin-1", "replace")
    return bytes(text)


def field_value(scope: Scope, name: bytes) -> str:
    """Return all values of a header joined in order (RFC 9110, section 5.3); only the last `MAX_FIELD` characters."""
    value: bytes = b",".join([field[1] for field in scope["headers"] if field[0] == name])
    return value[-MAX_FIELD:].decode("latin-1")


def names_in(message: Message) -> list[str]:
    """Return the names of limits that stand in the fields of a response, as those of a middleware within do."""
    names: list[str] = []
    for field in message.get("headers", ()):
        if lowered(field[0]) == b"ratelimit-policy":
            names += _NAME.findall(_as_bytes(field[1]).decode("latin-1"))
    return names


def completed(message: Message, needed: Fields) -> Message:
    """Return a message with those of the needed fields that are missing, in whatever type or case it has the others."""
    fields: list[Field] = [*message.get("headers", ())]
    for field in needed:
        if field not in fields and field[0] not in [lowered(other[0]) for other in fields]:
            fields.append(field)
    return {**message, "headers": fields}


def _numbers(decision: Decision, readings: Sequence[WindowState], amounts: Sequence[int]) -> tuple[int, ...]:
    """Return what is left of some limits, each followed by the seconds until there is more, rounded up."""
    now_us = decision.now_us
    numbers: list[int] = []
    for (spent, leaves_us, _, _), amount in zip(readings, amounts, strict=True):
        if spent:
            left = amount - spent
            if left < 0:
                left = 0  # a debt is no number of units; `max` would be a call
            # `ceil_s` of the time until then, without a call: minus the floor of what is negative.
            numbers += left, -((now_us - leaves_us) // 1_000_000)
        else:
            numbers += amount, 0
    return tuple(numbers)


def _item(name: str, limit: AnyLimit) -> bytes:
    """Return the item of RateLimit for a limit, with two places: for what is left, and for the time until more is.

    The time of the next permit is unknown; ``%.0a`` writes nothing.
    """
    numbers = ";r=%d;t=%d"
    if isinstance(limit, Concurrency):
        numbers = ";r=%d%.0a"
    return f'"{name}"{numbers}'.encode()


def _policy_item(name: str, limit: AnyLimit, unit: str | None) -> str:
    """Format one item of RateLimit-Policy: ``"api";q=100;w=10``. The window is omitted unless it is whole seconds."""
    item = f'"{name}";q={limit.amount}'
    if isinstance(limit, Concurrency):
        unit = "concurrent-requests"
    if unit is not None:
        item += f";qu={quote(unit)}"
    if limit.window_s is not None:
        item += f";w={limit.window_s}"
    return item


def _legacy_fields(decision: Decision, unix_us: int) -> Fields:
    """Return the X-RateLimit-* fields; -Reset is omitted for permits, whose release time is unknown."""
    state: Any = decision.binding  # there are readings
    limit = state.limit
    fields = [(b"x-ratelimit-limit", b"%d" % limit.amount), (b"x-ratelimit-remaining", b"%d" % state.remaining)]
    if not isinstance(limit, Concurrency):
        fields.append((b"x-ratelimit-reset", b"%d" % ceil_s(unix_us + state.reset_after_us)))
    return fields
