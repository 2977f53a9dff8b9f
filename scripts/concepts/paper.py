"""What pictures are drawn on: a sheet with a title, in one of two themes, that becomes the text of an SVG.

A sheet has a ground of its own, because a page may be light where the system of its reader is dark. Its unit is
small, so that letters keep a readable size where a telephone shows the whole width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final, NamedTuple, TypeAlias

WIDTH: Final = 360
SHOWN: Final = 480
"""How wide a browser with enough room shows a picture, in CSS pixels."""
LETTERS: Final = 13
"""The size of letters. No text is smaller."""


class Theme(NamedTuple):
    """The colours of a picture."""

    ground: str
    text: str
    faint: str
    line: str
    ours: str
    soft: str
    over: str
    other: str


THEMES: Final = {
    "light": Theme("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#b6d5fa", "#cf222e", "#818b98"),
    "dark": Theme("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#4493f8", "#1f4a80", "#ff7b72", "#7d8590"),
}

Point: TypeAlias = tuple[float, float]


class Paper:
    """One sheet. Colours are named by the fields of a `Theme`.

    Args:
        theme: The colours.
        height: How high it is; it is `WIDTH` wide.
    """

    def __init__(self, theme: Theme, height: int) -> None:
        self.height = height
        self._theme = theme
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, colour: str = "text", *, anchor: str = "start", bold: bool = False
    ) -> None:
        """Write one line, whose letters stand on `y`."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.6g}" y="{y:.6g}" text-anchor="{anchor}" fill="{self._colour(colour)}"'
        self._parts.append(f"<text {place}{weight}>{escape(words, quote=False)}</text>")

    def line(self, start: Point, end: Point, colour: str = "line", *, width: float = 1, dashed: bool = False) -> None:
        """Draw a straight line."""
        place = f'x1="{start[0]:.6g}" y1="{start[1]:.6g}" x2="{end[0]:.6g}" y2="{end[1]:.6g}"'
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(f'<line {place} stroke="{self._colour(colour)}" stroke-width="{width:g}"{dashes}/>')

    def path(self, points: Iterable[Point], colour: str, *, width: float = 2) -> None:
        """Draw a line through points."""
        places = " ".join(f"{x:.6g},{y:.6g}" for x, y in points)
        stroke = f'stroke="{self._colour(colour)}" stroke-width="{width:g}" stroke-linejoin="round"'
        self._parts.append(f'<polyline points="{places}" fill="none" {stroke}/>')

    def box(self, corner: Point, size: Point, colour: str, *, outline: bool = False, round: float = 0) -> None:
        """Draw a rectangle from its upper left corner: filled, or its outline alone."""
        place = f'x="{corner[0]:.6g}" y="{corner[1]:.6g}" width="{size[0]:.6g}" height="{size[1]:.6g}"'
        look = f'fill="none" stroke="{self._colour(colour)}"' if outline else f'fill="{self._colour(colour)}"'
        self._parts.append(f'<rect {place} rx="{round:g}" {look}/>')

    def dot(self, at: Point, radius: float, colour: str) -> None:
        """Draw a filled circle."""
        self._parts.append(f'<circle cx="{at[0]:.6g}" cy="{at[1]:.6g}" r="{radius:g}" fill="{self._colour(colour)}"/>')

    def span(self, left: float, right: float, y: float, colour: str) -> None:
        """Draw a line with an edge at both ends."""
        self.line((left, y), (right, y), colour, width=2)
        for x in (left, right):
            self.line((x, y - 5), (x, y + 5), colour, width=2)

    def svg(self, title: str, said: str) -> str:
        """Return the picture.

        Args:
            title: Its heading, which is drawn and read aloud.
            said: A description for those who do not see it.
        """
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{SHOWN}" '
            f'height="{SHOWN * self.height // WIDTH}" role="img" aria-labelledby="title desc" '
            f'font-family="system-ui, sans-serif" font-size="{LETTERS}">'
        )
        ground = f'<rect width="{WIDTH}" height="{self.height}" rx="6" fill="{self._theme.ground}"/>'
        heading = f'<text x="12" y="24" fill="{self._theme.text}" font-weight="600">{escape(title, quote=False)}</text>'
        spoken = [f'<title id="title">{escape(title)}</title>', f'<desc id="desc">{escape(said)}</desc>']
        return "\n".join([head, *spoken, ground, heading, *self._parts, "</svg>\n"])

    def _colour(self, name: str) -> str:
        return str(getattr(self._theme, name))


class Picture(NamedTuple):
    """A picture before it has colours.

    Attributes:
        name: The beginning of the names of its files.
        title: Its heading.
        said: A description, with the numbers.
        height: How high its sheet is.
        draw: Draws it below the heading, which takes 32 units.
    """

    name: str
    title: str
    said: str
    height: int
    draw: Callable[[Paper], None]

    def svg(self, theme: Theme) -> str:
        """Return it in the colours of a theme."""
        paper = Paper(theme, self.height)
        self.draw(paper)
        return paper.svg(self.title, self.said)

    def markup(self) -> str:
        """Return the lines by which a page of docs/concepts shows it."""
        return (
            f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="images/{self.name}-dark.svg">\n'
            f'  <img alt="{escape(self.said)}" src="images/{self.name}-light.svg" width="{SHOWN}">\n</picture>'
        )


class Scale(NamedTuple):
    """From numbers to places on the sheet."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def steps(course: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Return the corners of a course that stays at each value until the next moment, up to `end`."""
    corners: list[tuple[float, float]] = []
    for place, (at, value) in enumerate(course):
        until = course[place + 1][0] if place + 1 < len(course) else end
        corners += [(at, value), (until, value)]
    return corners
