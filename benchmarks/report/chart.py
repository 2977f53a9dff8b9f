"""Draws the chart of README and docs from the saved figures: what a limiter adds to a request, in light and in dark.

The bars begin at the answer of the bare application: one that ends on the left of it is cheaper than that answer. Bars
that would be much longer than ours end in a jagged edge, and the number says how long they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from .figures import FOLDER, Figures, load

TARGETS: Final = FOLDER.parents[1] / "docs" / "charts"
OURS: Final = "slidegate"
PANELS: Final = {
    "Admitted": {
        f"{OURS}, default": ("default", "source us"),
        f"{OURS}, default, compiled wheel": ("default", "wheel us"),
        f"{OURS}, everything": ("everything", "source us"),
        f"{OURS}, everything, compiled wheel": ("everything", "wheel us"),
        "asgi-ratelimit": ("asgi-ratelimit", "source us"),
        "asgi-ratelimit, five patterns": ("asgi-ratelimit, five patterns", "source us"),
        "slowapi": ("slowapi", "source us"),
        "fastapi-guard": ("fastapi-guard", "source us"),
    },
    "Refused": {
        f"{OURS}, by a limit": ("refused by a limit", "source us"),
        f"{OURS}, by a limit, compiled wheel": ("refused by a limit", "wheel us"),
        "asgi-ratelimit": ("asgi-ratelimit, refused", "source us"),
        "slowapi": ("slowapi, refused", "source us"),
        "fastapi-guard": ("fastapi-guard, refused", "source us"),
    },
}
"""Bars by their names, each with its row and column among the figures of `bench real`."""

WIDTH: Final = 760
LEFT: Final = 330
RIGHT: Final = 690
TOP: Final = 62
HEAD: Final = 40
ROW: Final = 26
BAR: Final = 16
JAG: Final = 5
STEPS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100)


class Theme(NamedTuple):
    """The colours of a chart."""

    text: str
    faint: str
    line: str
    ours: str
    others: str


THEMES: Final = {
    "light": Theme(text="#1f2328", faint="#59636e", line="#d1d9e0", ours="#0969da", others="#afb8c1"),
    "dark": Theme(text="#f0f6fc", faint="#9198a1", line="#3d444d", ours="#4493f8", others="#656c76"),
}


class Bar(NamedTuple):
    """One row of a panel."""

    name: str
    added_us: float


def bars(found: Figures, panel: dict[str, tuple[str, str]]) -> list[Bar]:
    """Return the bars of a panel; a compiled wheel may not have been measured."""
    measured = {name: found.number(*place) for name, place in panel.items()}
    return [Bar(name, added_us) for name, added_us in measured.items() if added_us is not None]


class Scale(NamedTuple):
    """From microseconds to places on the page."""

    least_us: float
    most_us: float

    def x(self, added_us: float) -> float:
        share = (added_us - self.least_us) / (self.most_us - self.least_us)
        return round(LEFT + share * (RIGHT - LEFT), 1)

    def ticks(self) -> list[float]:
        step = next(step for step in STEPS if (self.most_us - self.least_us) / step <= 8)
        return [number * step for number in range(int(self.least_us / step), int(self.most_us / step) + 1)]


def scale(shown: list[Bar]) -> Scale:
    """Return the scale on which our longest bar takes half of the width."""
    longest_us = max(bar.added_us for bar in shown if bar.name.startswith(OURS))
    return Scale(min(0.0, *(bar.added_us for bar in shown)), 2 * max(longest_us, 1.0))


def bar_of(bar: Bar, y: int, on: Scale, theme: Theme) -> Iterator[str]:
    """Yield the parts of one row."""
    ours = bar.name.startswith(OURS)
    middle = y + BAR / 2 + 4
    weight = ' font-weight="600"' if ours else ""
    name = f'text-anchor="end" fill="{theme.text}">{escape(bar.name)}'
    yield f'<text x="{LEFT - 10}" y="{middle:g}" {name}</text>'
    colour = theme.ours if ours else theme.others
    zero, end = on.x(0), on.x(min(bar.added_us, on.most_us))
    if bar.added_us > on.most_us:
        jagged = " ".join(f"{end - JAG * (step % 2):g},{y + step * BAR / 4:g}" for step in range(5))
        yield f'<polygon points="{zero:g},{y} {jagged} {zero:g},{y + BAR}" fill="{colour}"/>'
    else:
        yield f'<rect x="{min(zero, end):g}" y="{y}" width="{abs(end - zero):g}" height="{BAR}" fill="{colour}"/>'
    at = max(zero, end) + 6
    yield f'<text x="{at:g}" y="{middle:g}" fill="{theme.text}"{weight}>{bar.added_us:+.1f}</text>'


def panel(title: str, shown: list[Bar], top: int, on: Scale, theme: Theme) -> Iterator[str]:
    """Yield one panel: its heading, the lines of its scale, and a row for each bar."""
    first = top + HEAD
    bottom = first + ROW * len(shown) - (ROW - BAR) + 4
    yield f'<text x="{LEFT - 10}" y="{top + 26}" text-anchor="end" fill="{theme.faint}">{title}</text>'
    for tick in on.ticks():
        x, colour = on.x(tick), theme.faint if tick == 0 else theme.line
        yield f'<line x1="{x:g}" y1="{first - 6}" x2="{x:g}" y2="{bottom}" stroke="{colour}"/>'
        yield f'<text x="{x:g}" y="{top + 26}" text-anchor="middle" fill="{theme.faint}" font-size="11">{tick:g}</text>'
    for number, bar in enumerate(shown):
        yield from bar_of(bar, first + ROW * number, on, theme)


def draw(found: Figures, theme: Theme) -> str:
    """Return the chart as SVG."""
    panels = {title: bars(found, named) for title, named in PANELS.items()}
    on = scale([bar for shown in panels.values() for bar in shown])
    parts: list[str] = []
    top = TOP
    for title, shown in panels.items():
        parts += panel(title, shown, top, on, theme)
        top += HEAD + ROW * len(shown)
    height = top + 20
    words = "What a limiter adds to one request, in microseconds"
    below = f"0 is the answer of bare Starlette alone; less is better. {found.date}, {found.machine['cores']} cores, "
    below += ", ".join(f"{name} {number}" for name, number in list(found.versions.items())[:2])
    said = "; ".join(f"{title}: {bar.name} {bar.added_us:+.1f}" for title, shown in panels.items() for bar in shown)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="13">',
            f'<title id="title">{words}</title>',
            f'<desc id="desc">{escape(said)}</desc>',
            f'<text x="16" y="30" fill="{theme.text}" font-size="17" font-weight="600">{words}</text>',
            f'<text x="16" y="52" fill="{theme.faint}">{escape(below)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def charts() -> dict[Path, str]:
    """Return the text of each chart by its file."""
    found = load("real")
    return {TARGETS / f"added-{name}.svg": draw(found, theme) for name, theme in THEMES.items()}


def write() -> None:
    """Draw the charts anew."""
    TARGETS.mkdir(exist_ok=True)
    for path, text in charts().items():
        path.write_text(text, "utf-8")
