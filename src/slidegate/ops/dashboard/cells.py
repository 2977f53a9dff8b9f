"""The cells of tables: links, badges, gauges and notes, all texts escaped; sentences have some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from markupsafe import Markup

from .charts import NOTHING, meter
from .texts import address, count, plain

Value: TypeAlias = Markup | str
_LINK: Final = Markup('<a class="key" href="{}">{}</a>')
_BDI: Final = Markup("<bdi>{}</bdi>")
_KEY: Final = Markup('<span class="key">{}</span>')
_SMALL: Final = Markup("{} <small>{}</small>")
_BADGE: Final = Markup('{} <span class="badge{}">{}</span>')
_TONE: Final = Markup('<span class="{}">{}</span>')
_GAUGE: Final = Markup('<span class="gauge">{} <span class="n">{} / {}</span></span>')


class Head(NamedTuple):
    """The head of a column.

    Attributes:
        title: Its title.
        kind: The classes of its cells: ``n`` of numbers, ``long`` of long texts, ``word`` of words that are not
            broken, ``soft`` of what matters less, ``wide`` of what a phone leaves out.
        by: The field by which the table can be sorted; empty if it cannot.
    """

    title: str
    kind: str = ""
    by: str = ""


class Act(NamedTuple):
    """A form in a row.

    Attributes:
        does: ``unban``, ``restore`` or ``change``.
        text: Its button.
        name: The field that says what is changed.
        value: The value of that field.
        amount: The amount in force, to be changed.
    """

    does: str
    text: str
    name: str
    value: str
    amount: int | None = None


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        cells: One value for each column.
        key: What tells the row from others of its table, for the script that refreshes it.
        acts: The forms in its last column.
    """

    cells: Sequence[Value]
    key: str = ""
    acts: Sequence[Act] = ()


class Table(NamedTuple):
    """A table, or what is said in its place.

    Attributes:
        caption: What is in it.
        heads: Its columns.
        rows: Its rows.
        empty: What is said if it has none.
        note: What its numbers refer to.
        kind: ``stack`` if it has long texts, so that its rows become paragraphs on a phone.
        acts: Whether it has a column of forms.
    """

    caption: str
    heads: Sequence[Head]
    rows: Sequence[Row]
    empty: str = ""
    note: str = ""
    kind: str = ""
    acts: bool = False


def client(key: str) -> Markup:
    """Return a link to a client."""
    return _LINK.format(address("clients", {"key": key}), _BDI.format(plain(key, 64)))


def part(field: str, name: str, query: Mapping[str, str]) -> Markup:
    """Return a link to a rule or a route."""
    return _LINK.format(address("", {"window": query.get("window", ""), field: name}), plain(name))


def key(text: object, most: int = 80) -> Markup:
    """Return a name."""
    return _KEY.format(plain(text, most))


def small(value: Value, note: object, most: int = 160) -> Markup:
    """Return a value with a note."""
    return _SMALL.format(value, plain(note, most))


def badge(value: Value, text: str, *, is_hot: bool = False) -> Markup:
    """Return a value with a badge."""
    tone = ""
    if is_hot:
        tone = " hot"
    return _BADGE.format(value, tone, text)


def tone(kind: str, text: Value) -> Markup:
    """Return a text in a tone: ``warm`` or ``soft``."""
    return _TONE.format(kind, text)


def refused(number: float) -> Markup:
    """Return a number that is of interest unless it is 0."""
    if number:
        return tone("warm", count(number))
    return tone("soft", count(number))


def gauge(used: float, amount: float) -> Markup:
    """Return how much of an amount is spent."""
    return _GAUGE.format(meter(used, amount), count(used), count(amount))


def text_or_nothing(text: Any, most: int = 80) -> str:
    """Return a text; a dash for none."""
    return plain(text or NOTHING, most)
