"""Crawlers by the addresses that their operators publish: the JSON of Google, Bing, Apple, OpenAI and others, and AWS.

Any client can send the name of a crawler, but not its address. The condition compares the
whole address of a client, as its middleware sees it: its key may be a /64, which a crawler shares with others, or wider
than the published ranges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from starlette.types import Scope

from .._watcher import FollowedFile
from ..core.addresses import AddressRange, parse_network
from ..core.errors import ConfigurationError, quoted
from ..core.networks import Networks
from ..web.clients import KEY
from ..web.keys import KeyCondition

_LISTS: Final = ("prefixes", "ipv6_prefixes")
_FIELDS: Final = ("ipv4Prefix", "ipv6Prefix", "ip_prefix", "ipv6_prefix")
"""What a range is called: by the operators of crawlers, and by AWS."""
_EXPECTED: Final = '{"prefixes": [{"ipv4Prefix": "192.0.2.0/24"}]}'


def published_ranges(content: bytes, service: str | None) -> Iterator[AddressRange]:
    """Yield the ranges of the networks of a published file.

    Args:
        service: The service whose networks are wanted, if the file names some: any client can rent addresses of others.

    Raises:
        ConfigurationError: The file is invalid or has no such networks, or it names services and none is wanted.
    """
    rows = [*_rows(content)]
    services = {row["service"] for _, row in rows if isinstance(row.get("service"), str)}
    if services and service is None:
        some = ", ".join(sorted(services)[:10])
        raise ConfigurationError(
            f"has networks of several services, and anybody can rent addresses of some; name one of them, for example "
            f"Networks.from_file(path, service={min(services)!r}): {some}",
            "service",
        )
    if service is not None and service not in services:
        raise ConfigurationError(f"no network is of the service {quoted(service)}", "service")
    count = 0
    for place, row in rows:
        if service is None or row.get("service") == service:
            yield _range(place, row)
            count += 1
    if not count:
        raise ConfigurationError(f"has no networks; expected {_EXPECTED}")


def _rows(content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a published file, each with its place."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"is not valid JSON: {error}") from None
    for name in _LISTS:
        rows = data.get(name, [])
        if not isinstance(rows, list):
            raise ConfigurationError(f"{name}: expected a list as in {_EXPECTED}, not {quoted(rows)}")
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                raise ConfigurationError(f"{name}[{index}]: expected an object as in {_EXPECTED}, not {quoted(row)}")
            yield f"{name}[{index}]", row


def _range(place: str, row: dict[str, Any]) -> AddressRange:
    """Return the network of a row."""
    for field in _FIELDS:
        if field in row:
            try:
                return parse_network(row[field])
            except ConfigurationError as error:
                raise ConfigurationError(f"{place}.{field}: {error}") from None
    raise ConfigurationError(f"{place}: expected one of {', '.join(_FIELDS)}, not {quoted(row)}")


def client_is_in(networks: Networks, file: FollowedFile | None) -> KeyCondition:
    """Return the condition that the client of a request is in some networks, and follow their file if they have one."""

    def is_true(scope: Scope, client_key: str) -> bool | None:
        if file is not None:
            file.check_if_due()
        record = scope.get(KEY)
        if record is None:  # no middleware has seen this request
            return None
        address = record.client.address
        return address is not None and networks.covers(*address)

    name = ""
    if file is not None:
        name = f" {file.name}"
    return KeyCondition(f"networks{name}", is_true)
