"""The report of a simulation as one HTML file, which makes no request and runs no script.

Its charts are SVG that is drawn here: a file that is mailed around must work without a script, under any policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from math import log10
from typing import Final

from ..core.logs import escaped
from .report import MAX_SHOWN, Simulated

WIDTH: Final = 720
HEIGHT: Final = 180
_BELOW: Final = HEIGHT + 22
_NUMBERS: Final = ("requests", "refused", "banned")
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; --ink: light-dark(#1d2329, #e6e9ec); --faint: light-dark(#57606a, #9aa4af);
  --page: light-dark(#ffffff, #14181d); --card: light-dark(#f4f6f8, #1d232a); --rule: light-dark(#d0d7de, #3d444d);
  --passed: light-dark(#3b6fb6, #7fb0f0); --refused: light-dark(#c2410c, #fb923c); }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0; }
main { max-width: 800px; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .5rem; margin: 0; }
dl div { background: var(--card); border-radius: 6px; padding: .4rem .75rem; }
dt { color: var(--faint); font-size: .8rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--rule); }
th { color: var(--faint); font-size: .8rem; font-weight: 600; white-space: nowrap; }
td { overflow-wrap: break-word; min-width: 6rem; max-width: 22rem; }
.n { text-align: right; min-width: 0; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 0; } figcaption { color: var(--faint); font-size: .85rem; margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
.passed { fill: var(--passed); } .refused { fill: var(--refused); } .axis { stroke: var(--rule); }
.limit { stroke: var(--refused); stroke-width: 2; stroke-dasharray: 4 3; }
@media (max-width: 500px) { svg text { font-size: 22px; } }
"""


def html_report(simulated: Simulated, title: str) -> str:
    """Return the report.

    Args:
        simulated: The simulation.
        title: The limits, or the name of the file with the rules, as the title shows it.
    """
    clients = [
        (name, f"{tally.requests:,}", f"{tally.refused:,}", f"{tally.banned:,}", *tally.look())
        for name, tally in simulated.touched()[:MAX_SHOWN]
    ]
    routes = simulated.busiest_routes()[:MAX_SHOWN]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Simulation of {_text(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>Simulation of {_text(title)}</h1>",
        _figures(simulated),
        "<h2>Requests over time</h2>",
        _over_time(simulated),
        "<h2>Clients by their busiest minute</h2>",
        _by_peak(simulated),
        "<h2>Clients refused most</h2>",
        _table("Clients", ("client", "requests", "refused", "banned", "looks like", "because"), clients),
        "<h2>Routes</h2>",
        _table("Routes", ("route", "requests", "refused"), [(name, *_counts(counts)) for name, counts in routes]),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _counts(counts: Counter[str]) -> tuple[str, str]:
    return f"{counts['requests']:,}", f"{counts.total() - counts['requests']:,}"


def _figures(simulated: Simulated) -> str:
    """Write the totals; shares are floats."""
    cells = []
    for name, value in simulated.summary().items():
        shown = f"{value:.2%}" if isinstance(value, float) else f"{value:,}"
        cells.append(f"<div><dt>{name.replace('_', ' ')}</dt><dd>{shown}</dd></div>")
    return f"<dl>{''.join(cells)}</dl>"


def _text(text: str) -> str:
    return escape(escaped(text, 300))


def _table(name: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Write a table; where it is wider than the screen, it scrolls by itself, with the keyboard too."""
    if not rows:
        return "<p>None.</p>"
    kinds = [' class="n"' if column in _NUMBERS else "" for column in columns]
    head = "".join(f'<th scope="col"{kind}>{column}</th>' for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_text(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def _chart(caption: str, inside: list[str]) -> str:
    """Write a chart; `caption` stands above it, and is what a reader hears who does not see it."""
    axis = f'<line class="axis" x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>'
    drawn = f'<svg viewBox="0 -2 {WIDTH} {HEIGHT + 30}" role="img" aria-label="{escape(caption)}">'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawn}{axis}{''.join(inside)}</svg></figure>"


def _bar(kind: str, x: float, width: float, bottom: float, height: float) -> str:
    top = bottom - height
    return f'<rect class="{kind}" x="{x:.1f}" width="{width:.1f}" y="{top:.1f}" height="{height:.1f}"/>'


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _over_time(simulated: Simulated) -> str:
    points = simulated.timeline.points()
    if not points:
        return "<p>None.</p>"
    step_us = simulated.timeline.step_us
    first_us, highest = points[0][0], max(requests for _, requests, _ in points)
    steps = (points[-1][0] - first_us) // step_us + 1
    width = WIDTH / steps
    inside = []
    for start_us, requests, refused in points:
        x = (start_us - first_us) / step_us * width
        below, above = (requests - refused) / highest * HEIGHT, refused / highest * HEIGHT
        inside += [_bar("passed", x, width, HEIGHT, below), _bar("refused", x, width, HEIGHT - below, above)]
    inside.append(_label(0, _BELOW, _time(first_us)))
    inside.append(_label(WIDTH, _BELOW, _time(points[-1][0] + step_us), "end"))
    lost = sum(refused for _, _, refused in points)
    return _chart(
        f"Requests in steps of {step_us / 1e6:,.0f} s, at most {highest:,}. Orange: the {lost:,} of "
        f"{simulated.clients.requests:,} that were refused, banned or blocked.",
        inside,
    )


def _by_peak(simulated: Simulated) -> str:
    """Draw how many clients have which busiest minute; both axes are logarithmic."""
    classes = Counter(int(log10(client.busiest_minute) * 8) for client in simulated.clients.tallies.values())
    if not classes:
        return "<p>None.</p>"
    count = max(classes) + 2
    width, highest = WIDTH / count, log10(max(classes.values()) + 1)
    inside = []
    for step, clients in sorted(classes.items()):
        inside.append(_bar("passed", step * width, width * 0.9, HEIGHT, log10(clients + 1) / highest * HEIGHT))
    inside += [_label(power * 8 * width, _BELOW, f"{10**power:,}") for power in range(count // 8 + 1)]
    for name, per_minute in simulated.limits_a_minute():
        x = log10(max(per_minute, 1)) * 8 * width
        if x <= WIDTH:
            inside.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>')
            inside.append(_label(x + 4, 16, name) if x < WIDTH * 0.85 else _label(x - 4, 16, name, "end"))
    return _chart(
        f"Clients by the requests of their busiest minute: at most {max(classes.values()):,} clients in one bar. Both "
        "axes are logarithmic. A dashed line is a limit, at what it allows in a minute on average.",
        inside,
    )


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
