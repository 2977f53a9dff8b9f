"""Header fields that others wrote: names in any case and as any kind of bytes, and fields that cannot be sent."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

Field: TypeAlias = Any
"""A field as an application wrote it: two of bytes, or of another kind of bytes, in a tuple or a list."""
Fields: TypeAlias = list[tuple[bytes, bytes]]
"""Fields of ours."""

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, section 5.6.2."""
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""A value of RFC 9110, section 5.5: servers refuse controls, and the worst send a field that a line break hides."""


def lowered(name: Any) -> bytes:
    """Return the name of a field as ASGI has it, in whatever form an application wrote it."""
    return name.encode("latin-1", "replace").lower() if isinstance(name, str) else bytes(name).lower()


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
        value = value.strip(b" \t")  # blanks around a value are no part of it, and h11 refuses them
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
            good.append((name, value))
        else:
            bad.append(field)
    return good, bad
