"""The kinds of events: the fields of their details, and how often each can come; docs/guides/events.md shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_REQUEST: Final = "each such request"
_KEY: Final = "once a key and window"
_MINUTE: Final = "once a minute for each cause"
_CHANGE: Final = "each change"
_FAULT: Final = "each time"
_WINDOW: Final = "once a window"
_SECOND: Final = "once a second"


class Kind(NamedTuple):
    """One kind of events.

    Attributes:
        fields: The names of the details.
        often: How often such an event can come at most.
        logged: Whether the package itself also writes such an event to its log.
    """

    fields: frozenset[str]
    often: str
    logged: bool


def _kind(fields: str, often: str, *, logged: bool = True) -> Kind:
    return Kind(frozenset(fields.split()), often, logged)


KINDS: Final[Mapping[str, Kind]] = {
    "refused": _kind("key client rule limit reason by route method retry_after_s status", _REQUEST, logged=False),
    "near_limit": _kind("key rule limit spent amount", _KEY, logged=False),
    "shadow_refused": _kind("rule key", _REQUEST, logged=False),
    "banned": _kind("key by reason rung until", _CHANGE),
    "unbanned": _kind("key by was_by", _CHANGE),
    "shadow_banned": _kind("policy key rung reason", _CHANGE),
    "bans_capped": _kind("policy key", "once a minute for each policy"),
    "bans_full": _kind("max_bans key", "once a minute"),
    "strikes_dropped": _kind("max_bans", "once a minute"),
    "bans_unread": _kind("error", "once until they can be read again"),
    "bans_rescued": _kind("bans", "once an opening"),
    "keys_shared": _kind("max_keys", _WINDOW),
    "series_full": _kind("max_series", "once", logged=False),
    "shedding_started": _kind("shed", _SECOND, logged=False),
    "shedding_ended": _kind("shed", _SECOND, logged=False),
    "store_failed": _kind("on_error error", _MINUTE),
    "store_recovered": _kind("failures", "once after each `store_failed`"),
    "store_reset": _kind("", _FAULT),
    "store_evicts": _kind("server policy", "once a connection"),
    "store_set_aside": _kind("path damage", "once an opening"),
    "store_doubtful": _kind("", "once an opening"),
    "clock_stepped": _kind("server step_us", _FAULT),
    "places_lost": _kind("lost back", _FAULT),
    "map_grown": _kind("bytes", _FAULT),
    "map_full": _kind("gone", _FAULT),
    "reader_stopped": _kind("pid transactions", "once for each process"),
    "list_reloaded": _kind("list path count skipped", _CHANGE),
    "list_rejected": _kind("list path", _CHANGE),
    "list_shrunk": _kind("list path count before", _CHANGE),
    "config_reloaded": _kind("path", _CHANGE),
    "config_rejected": _kind("path", _CHANGE),
    "config_shrunk": _kind("path", _CHANGE),
    "windows_restarted": _kind("path", _CHANGE),
    "pause_ignored": _kind("key pause_us", _FAULT, logged=False),
    "pause_unshared": _kind("key pause_us", _FAULT, logged=False),
    "events_dropped": _kind("dropped", _SECOND),
}
