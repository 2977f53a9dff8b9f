"""Bans as lines of a file: slidegate's own, and lists of networks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final

from ...core.addresses import parse_network
from ...core.errors import ConfigurationError
from .opened import Opened

OWN: Final = "slidegate"
FORMS_OUT: Final = (OWN, "plain")


def exported(at: Opened, form: str, left_out: Counter[str]) -> Iterator[tuple[int, str]]:
    """Yield (how many bans it holds, line) for each line of an export.

    Args:
        at: The store.
        form: One of `FORMS_OUT`.
        left_out: Counts the bans that the format cannot hold, by cause.
    """
    if form == OWN:
        for part in at.each(at.bans.dump_parts()):
            yield from (("ban" in row, json.dumps(row, ensure_ascii=True)) for row in part)
        return
    for bans in at.each(at.bans.active_parts()):
        for ban in bans:
            if _is_network(ban.key):
                yield 1, ban.key
            else:
                left_out["no address or network"] += 1


def _is_network(key: str) -> bool:
    try:
        parse_network(key)
    except ConfigurationError:
        return False
    return True
