"""What Redis says instead of an answer, and what is in trouble then: a key, a slot or the server."""

from __future__ import annotations

from typing import Final

from ...core.errors import Concerns, StoreUnavailable

SICK: Final = ("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM")
"""Errors after which another connection may lead to a server that is well, or one that has learnt the password."""
_OF_A_KEY: Final = "WRONGTYPE"
_OF_A_SLOT: Final = ("TRYAGAIN", "CLUSTERDOWN Hash slot", "MOVED", "ASK", "CROSSSLOT")
_MOST_SHOWN: Final = 300


def refusal(place: str, said: object) -> StoreUnavailable:
    """Return the error for what a server said instead of an answer.

    Args:
        place: What to call the server.
        said: Its words.
    """
    text = str(said)
    concerns: Concerns = "server"
    if _OF_A_KEY in text:  # a script may say more before it
        concerns = "key"
    elif text.startswith(_OF_A_SLOT):
        concerns = "slot"
    return StoreUnavailable(f"redis: {place}{': ' if place else ''}{text}", concerns=concerns)


def unexpected(place: str, answer: object) -> StoreUnavailable:
    """Return the error for an answer that is none to what was asked."""
    shown = repr(answer)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
    return StoreUnavailable(f"redis: {place} gave an answer that is none: {shown}")
