"""The files of the page, read once into a fixed table: no path of a request is ever joined to a directory."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGE: Final = "index.html"


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return path below the mount -> (content, content type) of the page and everything that it loads."""
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            found["/" if file.name == PAGE else f"/static/{file.name}"] = (file.read_bytes(), kind)
    return found
