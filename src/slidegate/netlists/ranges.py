"""Ranges as lists write them, from one address to another: ``192.0.2.0 - 192.0.2.99``."""

from __future__ import annotations

import re
from typing import Final

from ..core.addresses import parse_address, parse_network
from ..core.errors import ConfigurationError, quoted

_RANGE: Final = re.compile(r"([^\s-]++)\s*+(?:-|\u2013|\u2014|to\b|TO\b)\s*+([^\s-]++)")
_TO: Final = re.compile("(?<=[0-9A-Fa-f:])(?:\\.{2,3})(?=[0-9A-Fa-f:])|\u2013|\u2014")
_APART: Final = re.compile(r"(\S++)\s++/\s*+([0-9]{1,3})(?!\S)")


def parse_range(text: str, *, strict: bool = True) -> tuple[int, int, int]:
    """Read an address, a network or a range as (version, first address, last address).

    Args:
        text: What `parse_network` takes, or two addresses with ``-`` or ``to`` between them.
        strict: Whether bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: The text is none of them, or the range ends before it begins.
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        return parse_network(text, strict=strict)
    first, last = parse_address(found[1]), parse_address(found[2])
    if first is None or last is None:
        raise ConfigurationError(f"network: {quoted(text)} is no range, for example 192.0.2.0 - 192.0.2.99")
    if first[0] != last[0] or first[1] > last[1]:
        raise ConfigurationError(f"network: {quoted(text)} ends before it begins; write the lower address first")
    return first[0], first[1], last[1]


def leading_entry(text: str) -> str:
    """Return the address, network or range with which a line begins, without the rest of the line.

    Raises:
        ConfigurationError: The text behind it looks like a part of it, and is in no form that is read here.
    """
    text = _TO.sub(" - ", text)
    found = begins_with_range(text)
    if found:
        return found
    apart = _APART.match(text)
    if apart and is_address(apart[1]):
        return f"{apart[1]}/{apart[2]}"
    columns = text.split(None, 2)
    if len(columns) > 1:
        word = columns[1].lower().rstrip(":")
        if word in ("mask", "netmask", "wildcard", "to", "-", "/") or columns[1][0] in "-/" or is_address(columns[1]):
            raise ConfigurationError(
                f"expected one address, network or range a line, for example 192.0.2.0/24 or 192.0.2.0 - 192.0.2.99, "
                f"not {quoted(text)}"
            )
    return columns[0]


def begins_with_range(text: str) -> str:
    """Return the range with which a line begins; an empty text if it does not."""
    found = _RANGE.match(_TO.sub(" - ", text))
    return f"{found[1]} - {found[2]}" if found and is_address(found[1]) and is_address(found[2]) else ""


def is_address(text: str) -> bool:
    """Tell whether a text is an address, or a network as far as its address goes."""
    return parse_address(text.partition("/")[0].strip("[],;\"'")) is not None


def may_be_range(left: str, right: str) -> bool:
    """Tell whether two addresses side by side may be the ends of a range, or one with its netmask."""
    first, last = parse_address(left), parse_address(right)
    if first is None or last is None or first[0] != last[0]:
        return False
    return first[1] < last[1] or _is_mask(*last)


def _is_mask(version: int, value: int) -> bool:
    """Tell whether an address is nobody's, and may be a netmask or what Cisco calls a wildcard."""
    return version == 4 and value >> 24 in (0, 255)


def check_neighbours(addresses: list[str]) -> None:
    """See that addresses that stand side by side are several and not the two ends of a range, or one with its netmask.

    Raises:
        ConfigurationError: They may be.
    """
    if len(addresses) != 2 or not may_be_range(*addresses):
        return
    _, first = parse_address(addresses[0]) or (0, 0)
    version, last = parse_address(addresses[1]) or (0, 0)
    size = last - first + 1
    if _is_mask(version, last) or (size > 2 and size & (size - 1) == 0 and first % size == 0):
        raise ConfigurationError(
            f"{' '.join(addresses)} may be the ends of a range, or an address with its netmask; write "
            f"192.0.2.0 - 192.0.2.255 or 192.0.2.0/24, or each address in a line of its own"
        )
