"""Who reads a kind of key: the rules and ban policies that the workers have published; see `Limiter.published`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from .. import ConfigurationError, Limiter
from ..limiter import Publication, PublishedRule
from .kinds import FUNCTION, beginnings_of, kind_of
from .rows import EVERYWHERE, BanScope, listed, scope_of


class Reading(Enum):
    """What is known about who reads a kind of key."""

    READ = "read"
    UNREAD = "unread"
    UNKNOWN = "unknown"


class Readers(NamedTuple):
    """Who reads the kind of a key.

    Attributes:
        reading: Whether anybody does, as far as workers have published their rules.
        scope: Where a ban of the key holds.
    """

    reading: Reading
    scope: BanScope


async def readers_of(limiter: Limiter, key: str) -> Readers:
    """Return who reads the kind of a key, given in its canonical form.

    Raises:
        StoreError: The store does not answer.
    """
    scope = scope_of(key)
    if scope == EVERYWHERE:
        return Readers(Reading.READ, scope)
    published = await limiter.published()
    # A worker whose rules are not known, as one of another version, may read it.
    if not published or not all(one.is_readable for one in published):
        return Readers(Reading.UNKNOWN, scope)
    rules = list(_rules_that_read(published, key))
    # A policy of bans reads the key of every request, a rule only of those that it concerns.
    if any(rule.action == "ban" for rule in rules):
        return Readers(Reading.READ, EVERYWHERE)
    if not rules:
        return Readers(Reading.UNREAD, scope)
    return Readers(Reading.READ, BanScope(f"where {_shown(rules)} it", scope.remedy))


class UnreadKeyError(ConfigurationError):
    """Nobody reads the kind of a key, so a ban of the key would refuse nothing."""


def check_read(readers: Readers, key: str, how_anyway: str) -> None:
    """Check that somebody may read the kind of a key that is banned by hand.

    Args:
        readers: Who reads it.
        key: The key, in its canonical form.
        how_anyway: How to ban it anyway, for the message.

    Raises:
        UnreadKeyError: No rule and no ban policy of the workers reads it.
    """
    if readers.reading is not Reading.UNREAD:
        return
    ways = how_anyway
    # The remedy speaks of every request; any rule that reads the key would do.
    remedy = readers.scope.remedy.removesuffix("for every request").rstrip(", ")
    if remedy:
        ways = f"{remedy} in the application, or {how_anyway}"
    raise UnreadKeyError(
        f"no rule and no ban policy of the workers reads {kind_of(key)!a}, so this ban would refuse nothing; {ways}",
        "key",
    )


def _rules_that_read(published: Sequence[Publication], key: str) -> Iterator[PublishedRule]:
    """Yield the rules that read the kind of a key, and refuse it while it is banned."""
    for one in published:
        for rule in one.text.rules:
            # A rule in shadow refuses nobody. A policy in shadow bans nobody, and obeys the bans of others.
            if rule.shadow and rule.action != "ban":
                continue
            if rule.key == FUNCTION or key.startswith(beginnings_of(rule.key)):
                yield rule


def _shown(rules: Iterable[PublishedRule]) -> str:
    """Return that some rules read something, with their names, or the first of many."""
    names = list(dict.fromkeys(repr(rule.rule) for rule in rules))
    if len(names) == 1:
        return f"rule {names[0]} reads"
    return f"rules {listed(names)} read"
