"""``slidegate explain``: what refuses a client, until when, and what is counted for it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from shlex import quote
from typing import Any, Final

import click

from ... import Limiter
from ..explain import NOT_LISTED, Facts, answer_of, facts_of
from ..facts import Fact, joined
from ..published_rules import EVERY
from ..rows import key_of, span, time_of
from .changes import compare_secrets
from .main import UNKNOWN, Answer, NoAnswer, asking, program, table, with_value

_S: Final = 1_000_000


@program.command()
@asking(has_code=True)
@click.argument("key")
@with_value
async def explain(limiter: Limiter, key: str, value: str | None) -> Answer:
    """Show what refuses KEY and until when, and what is used and left of each limit.

    KEY is an address, user:42 or another key. The limits, lists and bans are those of the workers that had a request
    within a day, with the amounts that operators have changed; the latest refusals are known where a worker has
    statistics. The exit code is 0 if nothing here refuses KEY, except perhaps by a condition, 1 if a ban or a limit
    without room does or may, and 3 if that is not known: no worker has published its rules, some of them or limits that
    functions return cannot be read, or the store does not answer.

    \b
    Example: slidegate explain 203.0.113.7 --store redis://localhost:6379/0
    """
    client = key_of(key, value)
    try:
        await compare_secrets(limiter, value)
    except click.ClickException as error:
        raise NoAnswer(error.message) from error
    facts = await facts_of(limiter, client)
    code = 0
    if facts.refused_by is not None:
        code = 1  # something refuses the key, or may
    elif facts.is_open and facts.off is None:
        code = UNKNOWN
    return [{**answer_of(facts), "code": code}], _lines(facts)


# -- text --------------------------------------------------------------------------------------------------------------


def _lines(facts: Facts) -> Iterator[str]:
    refusals = [{**event.details, "time": time_of(event.time_us / _S)} for event in facts.refusals or ()]
    if refusals:
        yield from (*table(("time", "rule", "limit", "reason", "route", "client"), refusals), "")
    if facts.rows:
        columns = ("rule", "what", "used", "left", "more in", "now", "requests", "key", "note")
        yield from (*table(columns, map(_cells, facts.rows)), "")
    yield _verdict(facts)
    if facts.refused_lately:
        yield facts.refused_lately
    for key, rule in facts.behind.items():
        yield f"refused behind it by {rule}: slidegate explain {quote(key)}"
    if facts.left_out:
        yield f"not read: {'; '.join(facts.left_out)}"
    yield NOT_LISTED


def _cells(fact: Fact) -> dict[str, Any]:
    cells = {**fact._asdict(), "now": fact.does}
    window = fact.window
    if window is not None:
        cells |= {"used": window.used, "left": window.remaining}
        if window.more_after_us:
            cells["more in"] = span(window.more_after_us / _S)
    return cells


def _verdict(facts: Facts) -> str:
    """Return the line that answers: by what the key is refused, and until when."""
    words = f"nothing here refuses it{facts.perhaps}"
    if facts.off is not None:
        words = f"every request passes, as all workers are off until {time_of(facts.off.until_us / _S)}"
    elif facts.refused_by is not None:
        words = _refused_by(facts.refused_by, facts.now_us)
    elif facts.is_open:
        words = "it is not known whether something refuses it"
    elif facts.refusals:
        words += f"; its last refusal was at {time_of(facts.refusals[0].time_us / _S)}"
    return f"{facts.key}: {words}"


def _refused_by(fact: Fact, now_us: int) -> str:
    words = f"refused by {fact.rule}"
    if fact.likely_refuses:
        words = f"may be {words}"
    until_us = fact.until_us(now_us)
    if until_us is not None:
        words += f" until {time_of(ceil(until_us / _S))}"
    elif fact.window is not None:
        words += " until there is room"  # for its cost, or as a request of it has ended
    about = fact.note
    if fact.window is None:
        about = joined(fact.what, about)
    if fact.requests != EVERY:
        about = joined(fact.requests, about)
    if about:
        words += f" ({about})"
    return words
