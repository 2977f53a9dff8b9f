"""The places of a page that a link may name, as the site makes them."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from markdown import Markdown

from scripts.site_pages import PAGE

ROOT: Final = Path(__file__).resolve().parents[2]
LINK: Final = re.compile(r"\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
ATTRIBUTE: Final = re.compile(r"\b(?:href|src|srcset)=\"(?P<target>[^\"\s]+)")
ID: Final = re.compile(r"\bid=\"([^\"]+)\"")
PROSE: Final = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2$|`[^`\n]+`|<!--.*?-->", re.MULTILINE | re.DOTALL)


@cache
def extensions() -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the Markdown extensions of the site that have a part in headings, and their options."""
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["markdown_extensions"]
    options: dict[str, dict[str, Any]] = {}
    for one in listed:
        options.update({name: given or {} for name, given in one.items()} if isinstance(one, dict) else {one: {}})
    options.pop("scripts.site_pages", None)  # it wants the builder of the site
    return list(options), options


@cache
def text_of(page: Path) -> str:
    """Return the text of a page; that of a file of the root where the page stands for one."""
    text = page.read_text("utf-8")
    found = PAGE.match(text)
    return (ROOT / found[1]).read_text("utf-8") if found else text


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return what may stand behind the # of a link to a page."""
    names, options = extensions()
    return frozenset(ID.findall(Markdown(extensions=names, extension_configs=options).convert(text_of(page))))


def links(text: str) -> list[str]:
    """Return the targets of the links and images of a page, outside of code."""
    prose = PROSE.sub(lambda found: "code" if found[0].startswith("`") else "", text)
    return [found["target"] for pattern in (LINK, ATTRIBUTE) for found in pattern.finditer(prose)]


def broken(page: Path) -> list[str]:
    return [target for target in links(page.read_text("utf-8")) if not leads_somewhere(page, target)]


def leads_somewhere(page: Path, target: str) -> bool:
    """Tell whether there are the file and the anchor that a link of a page names."""
    if re.match(r"\w+:", target):
        return True
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_relative_to(ROOT) or not file.exists():
        return False
    # Behind images the # says for which colours they are.
    return not anchor or (file.suffix == ".md" and anchor in anchors(file)) or anchor in {"only-light", "only-dark"}
