"""Bans as lines of a file: slidegate's own, and those that other tools read."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from ....core.addresses import parse_network
from ....core.bans.in_force import Ban
from ....core.errors import ConfigurationError
from ....netlists.ban_tools import COLUMNS
from .opened import Opened

OWN: Final = "slidegate"
CROWDSEC_HEAD: Final = f"{COLUMNS},country,as,events_count,expiration,simulated,alert_id"
FOR_EVER_H: Final = 87_600
"""CrowdSec knows no bans without an end: ten years stand for one."""
NO_END: Final = "9999-12-31 23:59:59"


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
    head, line_of = _WRITERS[form]
    if head:
        yield 0, head
    number = 0
    for bans in at.each(at.bans.active_parts()):
        for ban in bans:
            if not _is_network(ban.key):
                left_out["no address or network"] += 1
                continue
            number += 1
            yield 1, line_of(number, ban)


def _is_network(key: str) -> bool:
    try:
        parse_network(key)
    except ConfigurationError:
        return False
    return True


def _plain(number: int, ban: Ban) -> str:
    return ban.key


def _fail2ban(number: int, ban: Ban) -> str:
    """Return a line of ``fail2ban-client get JAIL banip --with-time``, whose times are local."""
    began = ban.since.astimezone().replace(microsecond=0)
    if ban.until is None:
        return f"{ban.key} {began:%Y-%m-%d %H:%M:%S} + -1 = {NO_END}"
    ends = ban.until.astimezone().replace(microsecond=0)
    return f"{ban.key} {began:%Y-%m-%d %H:%M:%S} + {round((ends - began).total_seconds())} = {ends:%Y-%m-%d %H:%M:%S}"


def _crowdsec(number: int, ban: Ban) -> str:
    """Return a row of ``cscli decisions list -o raw``, which says how long a ban still lasts."""
    until = ban.until
    left_s = FOR_EVER_H * 3_600 if until is None else max((until - datetime.now(UTC)).total_seconds(), 0)
    scope = "Range" if "/" in ban.key else "Ip"
    row = io.StringIO()
    values = (number, OWN, f"{scope}:{ban.key}", ban.reason, "ban", "", "", 1, f"{left_s:.0f}s", "false", number)
    csv.writer(row, lineterminator="").writerow(values)
    return row.getvalue()


_WRITERS: Final[dict[str, tuple[str, Callable[[int, Ban], str]]]] = {
    "plain": ("", _plain),
    "fail2ban": ("", _fail2ban),
    "crowdsec": (CROWDSEC_HEAD, _crowdsec),
}
FORMS_OUT: Final = (OWN, *_WRITERS)
