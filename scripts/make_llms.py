"""Write llms.txt, an index of the pages, and llms-full.txt, the text of all pages, into the built site.

``python3 dev.py site`` builds the site and runs this. It is an error if the site lacks a page of the navigation.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from scripts.site_pages import BADGE, DOCS, PAGE, ROOT

SITE: Final = ROOT / "site"
HEAD: Final = """# {name}

> {description}

All pages in one file: [llms-full.txt](llms-full.txt). The installed package has a skill for coding agents:
slidegate/.agents/skills/slidegate/SKILL.md in site-packages.
"""
ENOUGH: Final = 90
"""The length of a summary, in characters, from which no further sentence is added."""
COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)
PICTURE: Final = re.compile(r'<picture>.*?<img alt="([^"]*)".*?</picture>', re.DOTALL)
LINK: Final = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
OBJECT: Final = re.compile(r"^::: (\S+)\n(?: {4}.*\n)*", re.MULTILINE)
QUOTED: Final = re.compile(r"""(: |-> )(["'])(.*?)\2(?=[,)]| = |$)""")


class Page(NamedTuple):
    """A page of the site."""

    path: str
    text: str

    @property
    def title(self) -> str:
        """The heading of the page."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """The first sentences of the page, until they have `ENOUGH` characters."""
        paragraphs = (part for part in self.text.split("\n\n")[1:] if re.match(r"[\w\"*`\[]", part.lstrip("\n")))
        first = " ".join(LINK.sub(r"\1", next(paragraphs, "")).split())
        said = ""
        for sentence in re.split(r"(?<=[.?!])\s", first):
            if len(said) < ENOUGH:
                said = f"{said} {sentence}".lstrip()
        return said

    @property
    def address(self) -> str:
        """The address of the page, relative to the root of the site."""
        return self.path.removesuffix(".md").removesuffix("index") + ("" if self.path.endswith("index.md") else "/")


def page(path: str) -> Page:
    """Return a page as text, without comments and badges, and with text for pictures and documented names."""
    text = (DOCS / path).read_text("utf-8")
    if found := PAGE.match(text):
        text = (ROOT / found[1]).read_text("utf-8")
    text = PICTURE.sub(r"(Picture: \1)", BADGE.sub("", COMMENT.sub("", text)))
    return Page(path, OBJECT.sub(lambda match: documented(match[1]), text).strip() + "\n")


def documented(name: str) -> str:
    """Return the signature and the docstring of a public name, and one line per method."""
    module, _, attribute = name.rpartition(".")
    value = getattr(import_module(module), attribute)
    methods = vars(value).items() if inspect.isclass(value) else ()
    lines = [
        f"- `{method}{signature(of)}`: {(inspect.getdoc(of) or '').partition(chr(10))[0]}"
        for method, of in methods
        if inspect.isfunction(of) and not method.startswith("_")
    ]
    called = f"```python\n{attribute}{found}\n```" if (found := signature(value)) else ""
    return "\n\n".join(filter(None, (f"### {name}", called, inspect.getdoc(value), "\n".join(lines)))) + "\n"


def signature(value: object) -> str:
    """Return the signature of a function or class; an empty string for other objects."""
    if not inspect.isroutine(value) and not inspect.isclass(value):
        return ""
    try:
        return QUOTED.sub(r"\1\3", str(inspect.signature(value)))
    except ValueError:
        return ""


def sections(configuration: dict[str, list[dict[str, list[str]]]]) -> Iterator[tuple[str, list[Page]]]:
    """Yield the sections of the navigation with their pages."""
    for section in configuration["nav"]:
        for title, paths in section.items():
            yield title, [page(path) for path in paths]


def write(site: Path) -> None:
    """Write both files.

    Raises:
        SystemExit: The site lacks a page.
    """
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    index = HEAD.format(name=configuration["site_name"], description=configuration["site_description"])
    whole = []
    for title, pages in sections(configuration):
        index += f"\n## {title}\n\n"
        for one in pages:
            if not (site / one.address / "index.html").is_file():
                raise SystemExit(f"{site} has no page {one.address!r}; build it first: python3 dev.py site")
            index += f"- [{one.title}]({one.address or './'}): {one.summary}\n"
            whole.append(f"<!-- {one.path} -->\n\n{one.text}")
    (site / "llms.txt").write_text(index, "utf-8")
    (site / "llms-full.txt").write_text("\n".join(whole), "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE)
