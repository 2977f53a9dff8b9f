"""The blocklist of a middleware, without what a list from a file must not refuse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from ..core.addresses import AddressRange
from ..core.bans.policy import PRIVATE
from ..core.events import Event
from ..core.networks import Networks


class Blocklist:
    """The networks that a middleware refuses.

    Lists of others contain private networks (those that must not be routed), whose addresses here are probes, gateways,
    the proxies and the neighbours. A list from a file spares them, unless it says ``private=True``.

    Args:
        networks: The networks.
        trusted: Those of trusted proxies.
        emit: Receives the event ``list_spared``.
    """

    def __init__(self, networks: Networks, trusted: Networks, emit: Callable[[Event], None]) -> None:
        self._networks = networks
        self._spared = Networks()
        if networks.file is not None and not networks.file.private:
            self._spared = Networks.of_ranges([*PRIVATE.ranges(), *trusted.ranges()])
        self._emit = emit
        self._reported = 0
        self.report_spared()

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the list if it refuses an address; None if not."""
        name = self._networks.find(version, value)
        if name is not None and self._spared.covers(version, value):
            return None
        return name

    def ranges(self) -> Iterator[AddressRange]:
        """Yield the ranges that it refuses."""
        spared = [*self._spared.ranges()]
        for version, first, last in self._networks.ranges():
            for other, begin, end in spared:  # in ascending order
                if other != version or end < first or begin > last:
                    continue
                if begin > first:
                    yield version, first, begin - 1
                first = end + 1
            if first <= last:
                yield version, first, last

    def report_spared(self) -> None:
        """Report how many ranges of the file are left out, unless they were as many before."""
        before = self._reported
        count = self._networks.overlapping(self._spared)
        self._reported = count
        file: Any = self._networks.file
        if count in (0, before):
            return
        name = json.dumps(os.path.basename(file.path))
        message = (
            f"list {file.name!r}: of {count} address ranges, private addresses and trusted proxies are left out; to "
            f"refuse these, too, write Networks.from_file({name}, private=True), in slidegate.toml blocklist = "
            f"{{ path = {name}, private = true }}"
        )
        self._emit(Event("list_spared", message, {"count": count, "list": file.name, "path": file.path}))
