"""All pictures, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from . import bursts, demands, ladder, rings, slices, tiers, waits
from .paper import THEMES, Picture

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "images"
ROOMS: Final = (bursts, slices, rings, waits, tiers, ladder, demands)


def pictures() -> list[Picture]:
    """Return every picture."""
    return [picture for room in ROOMS for picture in room.pictures()]


def files() -> dict[Path, str]:
    """Return the text of each file."""
    return {
        FOLDER / f"{picture.name}-{name}.svg": picture.svg(theme)
        for picture in pictures()
        for name, theme in THEMES.items()
    }


def write() -> None:
    """Write all files, and remove those that are drawn no more."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = files()
    for path, text in drawn.items():
        path.write_text(text, "utf-8")
    for path in set(FOLDER.glob("*.svg")) - set(drawn):
        path.unlink()


def check() -> list[str]:
    """Return one line for each file that is not as it would be drawn."""
    drawn = files()
    wrong = [path for path, text in drawn.items() if not path.exists() or path.read_text("utf-8") != text]
    return [
        *(f"{path.name} is not as it is drawn: run python -m scripts.concepts" for path in wrong),
        *(f"{path.name} is drawn by nothing" for path in sorted(set(FOLDER.glob("*")) - set(drawn))),
    ]
