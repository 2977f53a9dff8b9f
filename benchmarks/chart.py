"""A bar chart as two SVG files, for light and for dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

COLOURS: Final = {
    "light": {"page": "#ffffff", "text": "#1f2328", "ours": "#0969da", "others": "#818b98"},
    "dark": {"page": "#0d1117", "text": "#f0f6fc", "ours": "#4493f8", "others": "#9198a1"},
}
WIDTH, LABELS, BAR, STEP, TOP = 640, 250, 16, 26, 44


def drawn(path: Path, title: str, bars: Sequence[tuple[str, float]], ours: str = "slidegate") -> dict[Path, str]:
    """Return the texts of `path`-light.svg and `path`-dark.svg.

    Args:
        path: The file, without the ending.
        title: What a bar measures, with its unit.
        bars: The labels and lengths of the bars, from the top; a negative length is drawn as zero, and written.
        ours: The bars whose label begins with this stand out.
    """
    height = TOP + STEP * len(bars)
    scale = (WIDTH - LABELS - 60) / max(length for _, length in bars)
    files: dict[Path, str] = {}
    told = "; ".join(f"{label}: {length:.1f}" for label, length in bars)
    for theme, colour in COLOURS.items():
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="13">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(told)}</desc>',
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{colour["page"]}"/>',
            f'<text x="12" y="24" fill="{colour["text"]}" font-weight="600">{escape(title)}</text>',
        ]
        for number, (label, length) in enumerate(bars):
            y, width = TOP + STEP * number, max(length, 0) * scale
            fill = colour["ours" if label.startswith(ours) else "others"]
            lines += [
                f'<text x="{LABELS - 8}" y="{y + 13}" text-anchor="end" fill="{colour["text"]}">{escape(label)}</text>',
                f'<rect x="{LABELS}" y="{y}" width="{width:.0f}" height="{BAR}" fill="{fill}"/>',
                f'<text x="{LABELS + width + 6:.0f}" y="{y + 13}" fill="{colour["text"]}">{length:.1f}</text>',
            ]
        files[Path(f"{path}-{theme}.svg")] = "\n".join([*lines, "</svg>", ""])
    return files
