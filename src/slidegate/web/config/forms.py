"""Values of a configuration file that may be written in several forms, such as text or a list of texts.

The form is told first, and only then is the value checked, so that an error is about the form that was meant.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, Discriminator, Field, Tag


def form_of(value: object) -> str:
    """Return the tag of the form that a value has, so that an error is about that form alone."""
    if isinstance(value, (dict, BaseModel)):
        return "<table>"
    if isinstance(value, list):
        return "<list>"
    return "<number>" if isinstance(value, int) and not isinstance(value, bool) else "<text>"


def form_of_list(value: object) -> str:
    """Return the tag of the form that a list of networks has: a list may hold networks or tables."""
    found = form_of(value)
    if isinstance(value, list) and any(form_of(entry) == "<table>" for entry in value):
        return "<tables>"
    return found if found in ("<list>", "<table>") else "<text>"


def text_or(*others: str) -> Discriminator:
    def form(value: object) -> str:
        found = form_of(value)
        return found if found in others else "<text>"

    return Discriminator(form)


Text: TypeAlias = Annotated[str, Tag("<text>")]
Texts: TypeAlias = Annotated[list[str], Field(min_length=1), Tag("<list>")]
Paths: TypeAlias = Annotated[Text | Texts, text_or("<list>")]
Trusted: TypeAlias = Annotated[
    Text | Annotated[list[str], Tag("<list>")] | Annotated[int, Field(ge=1, le=64), Tag("<number>")],
    text_or("<list>", "<number>"),
]
