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

from ...core.logs import escaped
from .simulated import MOST_SHOWN, Simulated

WIDTH: Final = 720
HEIGHT: Final = 180
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; --ink: light-dark(#1d2329, #e6e9ec); --passed: light-dark(#3b6fb6, #7fb0f0);
  --refused: light-dark(#c2410c, #fb923c); --rule: light-dark(#d0d7de, #3d444d); }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 760px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .6rem .2rem 0;
  border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; } td.n { font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.passed { fill: var(--passed); } .refused { fill: var(--refused); } .axis { stroke: var(--rule); }
.limit { stroke: var(--refused); stroke-width: 2; stroke-dasharray: 4 3; }
.line { stroke: var(--passed); stroke-width: 2; fill: none; }
"""


def html_report(simulated: Simulated, what: str) -> str:
    """Return the report.

    Args:
        simulated: The simulation.
        what: The limits, or the name of the file with the rules, as the title shows it.
    """
    figures = [(name.replace("_", " "), f"{value:,}") for name, value in simulated.summary().items()]
    clients = [
        (name, f"{tally.requests:,}", f"{tally.refused:,}", f"{tally.banned:,}", *tally.look())
        for name, tally in simulated.touched()[:MOST_SHOWN]
    ]
    routes = sorted(simulated.routes.items(), key=lambda pair: (-pair[1]["requests"], pair[0]))[:MOST_SHOWN]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{_text(what)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Simulation of {_text(what)}</h1>",
        _table(("figure", "value"), figures),
        "<h2>Requests over time</h2>",
        _over_time(simulated),
        "<h2>Clients by their busiest minute</h2>",
        _by_peak(simulated),
        "<h2>Clients beyond each limit per minute</h2>",
        _cut_off(simulated),
        "<h2>Clients refused most</h2>",
        _table(("client", "requests", "refused", "banned", "looks like", "because"), clients),
        "<h2>Routes</h2>",
        _table(("route", "requests", "refused"), [(name, f"{c['requests']:,}", f"{_lost(c):,}") for name, c in routes]),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _lost(counts: Counter[str]) -> int:
    return counts.total() - counts["requests"]


def _text(text: str) -> str:
    return escape(escaped(text, 300))


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else "<p>None.</p>"


def _svg(label: str, inside: list[str]) -> str:
    axis = f'<line class="axis" x1="0" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>'
    view = f"0 -14 {WIDTH} {HEIGHT + 34}"
    return f'<svg viewBox="{view}" role="img" aria-label="{escape(label)}">{axis}{"".join(inside)}</svg>'


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
    first_us, most = points[0][0], max(requests for _, requests, _ in points)
    steps = (points[-1][0] - first_us) // step_us + 1
    width = WIDTH / steps
    inside = [_label(0, -3, f"{most:,} requests in {step_us / 1e6:,.0f} s; orange: refused, banned or blocked")]
    for start_us, requests, refused in points:
        x = (start_us - first_us) / step_us * width
        below, above = (requests - refused) / most * HEIGHT, refused / most * HEIGHT
        inside += [_bar("passed", x, width, HEIGHT, below), _bar("refused", x, width, HEIGHT - below, above)]
    inside.append(_label(0, HEIGHT + 15, _time(first_us)))
    inside.append(_label(WIDTH, HEIGHT + 15, _time(points[-1][0] + step_us), "end"))
    return _svg("Requests over time", inside)


def _by_peak(simulated: Simulated) -> str:
    """Draw how many clients have which busiest minute; both axes are logarithmic."""
    classes = Counter(int(log10(peak.most) * 8) for peak in simulated.peaks.values() if peak.most)
    if not classes:
        return "<p>None.</p>"
    count = max(classes) + 2
    width, most = WIDTH / count, log10(max(classes.values()) + 1)
    inside = [_label(0, -3, f"up to {max(classes.values()):,} clients; both axes are logarithmic")]
    for place, clients in sorted(classes.items()):
        inside.append(_bar("passed", place * width, width * 0.9, HEIGHT, log10(clients + 1) / most * HEIGHT))
    inside += [_label(power * 8 * width, HEIGHT + 15, f"{10**power:,}") for power in range(count // 8 + 1)]
    for name, per_minute in simulated.limits_a_minute():
        x = log10(max(per_minute, 1)) * 8 * width
        if x <= WIDTH:
            inside.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>')
            inside.append(_label(x + 4, 12, name))
    return _svg("Clients by the requests of their busiest minute", inside)


def _cut_off(simulated: Simulated) -> str:
    """Draw for each number of requests a minute how many clients ask for more in a minute."""
    peaks = sorted((peak.most for peak in simulated.peaks.values()), reverse=True)
    if not peaks:
        return "<p>None.</p>"
    right, most = log10(peaks[0] + 1), len(peaks)
    places = [10 ** (right * step / 60) for step in range(61)]
    beyond = [sum(peak > place for peak in peaks) for place in places]
    path = " ".join(
        f"{step / 60 * WIDTH:.1f},{HEIGHT - clients / most * HEIGHT:.1f}" for step, clients in enumerate(beyond)
    )
    rows = [(f"{place:,.0f}", f"{beyond[step]:,}") for step, place in enumerate(places) if step % 6 == 0]
    line = f'<polyline class="line" points="{path}"/>'
    return _svg("Clients beyond each limit", [line, _label(0, -3, f"{most:,} clients")]) + _table(
        ("requests a minute", "clients with more"), rows
    )


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
