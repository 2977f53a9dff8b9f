"""Commands about overrides: they are checked against what workers have published, and written for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from ..core.store import Clock, SharedRow
from .aio import let_others_run, yielding_to_others
from .history import Action, History
from .named_limits import check_limit_name, unknown_limit
from .news import LIMITS, News
from .overrides import ALL, Override, Overrides, checked, value_of
from .published import Publication
from .rows import Rows
from .workers import Workers

_STEP: Final = 16
"""How many texts of workers are compared with an override in one step, at 100 us each."""


class OverrideCommands:
    """What operators do with overrides.

    Args:
        rows: The rows of the store.
        news: Reads the overrides.
        overrides: Those in force in this process.
        workers: The workers of the store.
        history: Keeps what was done.
        unix_us: Returns Unix time in microseconds.
    """

    def __init__(
        self, rows: Rows, news: News, overrides: Overrides, workers: Workers, history: History, unix_us: Clock
    ) -> None:
        self._rows = rows
        self._news = news
        self._overrides = overrides
        self._workers = workers
        self._history = history
        self._unix_us = unix_us

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers; for this one immediately.

        Raises:
            ConfigurationError: No worker has such a limit, or it cannot be changed to this; nothing is written.
            StoreError: The store does not answer.
        """
        text = checked(name, limit)
        published = await self._workers.all()
        having = _with_limit(published, name)
        if name != ALL:
            await _check_change(published, having, name, limit)
        await self._news.refresh()
        was = await _limit_before(having, name, text, self._overrides.in_force.get(name))
        now_us = self._unix_us()
        made = Override(name, text, by, reason, now_us, now_us + length_us, was=was)
        await self._write(made, length_us)
        await self._history.add(
            Action("override", name, by, reason, limit=text, at_us=now_us, until_us=made.until_us, was=was)
        )
        return replace(made, workers=sum(one.workers for one in having))

    async def unset(self, name: str, by: str) -> bool:
        """End the override of a limit; False if it has none.

        Raises:
            ConfigurationError: `name` cannot be the name of a limit.
            StoreError: The store does not answer.
        """
        if name != ALL:
            check_limit_name(name)
        await self._news.refresh()
        override = self._overrides.in_force.get(name)
        if override is None:
            return False
        await self._write(override, 0)
        await self._history.add(Action("restore", name, by, at_us=self._unix_us(), was=override.limit))
        return True

    async def listed(self) -> list[Override]:
        """Return the overrides in the store, each with the number of workers that apply it.

        Raises:
            StoreError: The store does not answer.
        """
        await self._news.refresh()
        found = sorted(self._overrides.in_force.values(), key=lambda override: override.name)
        if not found:
            return []
        published, counted = await self._workers.all(), []
        for override in found:
            workers = 0
            async for one in yielding_to_others(published, _STEP):
                if _applies(one, override):
                    workers += one.workers
            counted.append(replace(override, workers=workers))
            await let_others_run()
        return counted

    async def _write(self, override: Override, kept_us: int) -> None:
        digest = blake2b(override.name.encode(), digest_size=8).digest()
        await self._rows.write(digest, SharedRow(LIMITS, 0, value_of(override), kept_us))
        await self._news.refresh()


def _with_limit(published: Sequence[Publication], name: str) -> list[Publication]:
    """Return what those workers have published that have a limit of a name."""
    if name == ALL:
        return [*published]
    return [one for one in published if name in one.text.limits]


async def _check_change(published: Sequence[Publication], having: Sequence[Publication], name: str, limit: str) -> None:
    """Check a change against the limits of workers; if no worker has published any, every name is good.

    Raises:
        ConfigurationError: No worker has such a limit, or it cannot be changed to this.
    """
    if not having and published and all(one.is_readable for one in published):
        raise unknown_limit(name, [other for one in published for other in one.text.changeable])
    for one in having:
        rules = one.text.having(name)
        if not any(rule.named().takes(limit) for rule in rules):
            changeable = [rule for rule in rules if not rule.by_function]
            most_likely_meant = (changeable or rules)[-1]
            most_likely_meant.named().amount_in(limit)  # raises, and says why not
        await let_others_run()


async def _limit_before(having: Sequence[Publication], name: str, text: str, earlier: Override | None) -> str:
    """Return what applied until now, for people; see `Override.was`.

    Args:
        having: What those workers have published that have a limit of this name.
        name: The name.
        text: The limit that applies from now on, where it can.
        earlier: The override of it that is in force, and ends.
    """
    by_bucket: dict[str, dict[str, None]] = {}
    for one in having:
        for rule in one.text.having(name):
            limit, before = rule.named(), rule.limit
            if earlier is not None and limit.takes(earlier.limit):
                before = earlier.limit
            elif not limit.takes(text):
                continue
            by_bucket.setdefault(rule.bucket or rule.rule, {})[before] = None
        await let_others_run()
    if not by_bucket and earlier is not None:
        return earlier.limit
    texts = {bucket: " or ".join(before) for bucket, before in by_bucket.items()}
    if len(texts) < 2:
        return "".join(texts.values())
    return " and ".join(f"{before} of {bucket!r}" for bucket, before in sorted(texts.items()))


def _applies(published: Publication, override: Override) -> bool:
    """Return whether an override applies to some workers; they may have the name with another window."""
    if override.name == ALL:
        return True
    return any(rule.named().takes(override.limit) for rule in published.text.having(override.name))
