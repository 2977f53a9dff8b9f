"""Time zones by their names. The rules of a zone are files, and the core reads none; so they are read here."""

from __future__ import annotations

from datetime import UTC, tzinfo

from ...core.errors import ConfigurationError, quoted


def load_zone(name: object) -> tzinfo:
    """Return a time zone with its rules; UTC has none, and needs no database.

    Raises:
        ConfigurationError: There is no such zone, or no time zone database; the message says what would help.
    """
    example = 'for example "Europe/Berlin" or "UTC"'
    if not isinstance(name, str):
        raise ConfigurationError(f"zone: expected the name of a time zone, {example}, not {quoted(name)}")
    if name == "UTC":
        return UTC
    # Imported here, because few applications need them.
    from difflib import get_close_matches
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, for example "Europe"
        known = available_timezones()
    if not known:
        raise ConfigurationError(f"zone: there is no time zone database to find {quoted(name)} in: pip install tzdata")
    near = get_close_matches(name, known, 3) or [zone for zone in sorted(known) if name.lower() in zone.lower()][:3]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if name and near else ""
    raise ConfigurationError(f"zone: expected the name of a time zone, {example}, not {quoted(name)}{hint}")
