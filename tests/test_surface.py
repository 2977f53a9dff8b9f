"""What others rely on stands in docs/reference/surface.md; what is added, renamed or lost there is noticed.

``pytest tests/test_surface.py --update`` writes the page: read the difference, since it is what a release changes.
"""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from click import Command, Group

from slidegate.core import Ban, Reason
from slidegate.events import KINDS
from slidegate.limiter import PublishedRule
from slidegate.ops.cli import changes, check, explain, simulate  # noqa: F401  each adds its commands to the program
from slidegate.ops.cli.check import CODES as OF_CHECK
from slidegate.ops.cli.main import program
from slidegate.ops.metrics import COUNTERS, DURATION, GAUGES
from slidegate.web.endpoint_rule import EndpointOptions

from .conftest import details
from .test_docs import CODES, DOCUMENTED, ROOT

counts = pytest.importorskip("slidegate.stores.lmdb.counts")
protocol = pytest.importorskip("slidegate.stores.redis.protocol")

PAGE: Final = ROOT / "docs" / "reference" / "surface.md"
API: Final = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
SHOWN: Final = re.compile(r"^::: ([\w.]+)\n    options: \{members: (?:false|\[(.*)\])", re.MULTILINE)
"""The names of which the API page shows some members or none."""
SCHEMA: Final = json.loads((ROOT / "docs" / "slidegate.schema.json").read_text("utf-8"))
STABLE: Final = "**Stable**: what stands here keeps its name and its meaning; more may be added."
MAY_CHANGE: Final = "**May change in 0.x**; the changelog says so."
FOR_FEW: Final = re.compile(r"slidegate\.(core|limiter|ops|stores\.[A-Z])")
"""The modules whose names serve authors of stores and of tools."""
OF_THE_LIBRARY: Final = {"store", "engine", "digest", "middlewares"}
"""Members of a limiter that the API page leaves out."""


def signature(function: Any) -> str:
    """Return the parameters with their defaults, without types; those of a class without `self`."""
    given = inspect.signature(function).parameters.values()
    shown = [each.replace(annotation=each.empty) for each in given if each.name not in ("self", "cls")]
    return str(inspect.Signature(shown)).replace("PosixPath", "Path")


def members(name: str, shown: str | None) -> Iterator[str]:
    """Yield the lines of a documented name: itself, and its public methods and attributes, or those that are shown."""
    module, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(module), last)
    if not inspect.isclass(found):
        yield f"{name}{signature(found) if inspect.isfunction(found) else ''}"
        return
    is_made = not issubclass(found, BaseException) and not getattr(found, "_is_protocol", False)
    yield f"{name}{signature(found) if is_made else ''}"
    inherited = {*dir(BaseException), *(dir(tuple) if issubclass(found, tuple) else ())}
    all_of_it = sorted({*dir(found)} - inherited) if shown is None else filter(None, shown.split(", "))
    for member in all_of_it:
        if member.startswith("_") or member in OF_THE_LIBRARY:
            continue
        value = inspect.getattr_static(found, member, None)
        assert hasattr(found, member) or member in inspect.signature(found).parameters, f"{name} has no {member}"
        is_method = inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod))
        yield f"  .{member}{signature(getattr(found, member)) if is_method else ''}"


def names(*, for_few: bool) -> list[str]:
    """Return the lines of all documented names, of the one kind or the other."""
    shown = dict(SHOWN.findall(API))
    documented = [name for name in DOCUMENTED.findall(API) if bool(FOR_FEW.match(name)) == for_few]
    lines = [line for name in documented for line in members(name, shown.get(name))]
    if not for_few:
        lines.append("options of RateLimit: " + ", ".join(sorted(EndpointOptions.__annotations__)))
    return lines


def commands(command: Command, words: str) -> Iterator[str]:
    """Yield a line for each command, with its arguments and options."""
    if isinstance(command, Group):
        for name, below in sorted(command.commands.items()):
            yield from commands(below, f"{words} {name}")
        return
    given = [
        parameter.opts[0] if "-" in parameter.opts[0] else parameter.human_readable_name for parameter in command.params
    ]
    yield f"{words}: {', '.join(given)}"


def keys_of_the_file() -> Iterator[str]:
    """Yield a line for each table of `slidegate.toml`, with its keys."""
    yield f"top: {', '.join(SCHEMA['properties'])}"
    for name, table in SCHEMA["$defs"].items():
        found = {
            key: None
            for text in re.findall(r'"properties": (\{[^\0]*)', json.dumps(table))
            for key in json.loads(cut(text))
        }
        yield f"{name}: {', '.join(found)}"


def cut(text: str) -> str:
    """Return the JSON object with which a text begins."""
    _, end = json.JSONDecoder().raw_decode(text)
    return text[:end]


def stored() -> list[str]:
    """Return what stores keep under which names, and the fields of rows that later versions read."""
    packing = protocol.Packing("PREFIX", lambda: 0, readable=True)
    return [
        f"LMDB: counts-{counts.LAYOUT}-BOOT.mdb with {', '.join(counts.NAMES)}; kept.mdb, gate, users",
        f"Redis, layout {protocol.LAYOUT}: "
        + ", ".join(name.decode() for name in (packing.meta, packing.windows, packing.strikes)),
        "a ban: " + ", ".join(inspect.signature(Ban).parameters),
        "a published rule: " + ", ".join(PublishedRule._fields),
    ]


SECTIONS: Final[dict[str, tuple[str, Callable[[], Any]]]] = {
    "Names, options and defaults": (STABLE, lambda: names(for_few=False)),
    "Names for authors of stores and tools": (MAY_CHANGE, lambda: names(for_few=True)),
    "Keys of slidegate.toml": (STABLE, keys_of_the_file),
    "The command": (STABLE, lambda: commands(program, "slidegate")),
    "Exit codes": (STABLE, lambda: ["0, 1, 2, 3, 130: see Errors and findings"]),
    "Codes of findings": (STABLE, lambda: sorted({*CODES, *OF_CHECK})),
    "Reasons of decisions": (STABLE, lambda: [str(reason.value) for reason in Reason]),
    "Events": (STABLE, lambda: [f"{kind}: {', '.join(sorted(details()[kind]))}" for kind in KINDS]),
    "Metrics": (STABLE, lambda: [f"{one.name}: {', '.join(one.labels)}" for one in (*COUNTERS, DURATION, *GAUGES)]),
    "What stores keep": (MAY_CHANGE, stored),
}


@pytest.mark.interpreted("compiled functions have no signatures")
def test_the_page_says_what_others_rely_on(texts_in: Callable[..., None]) -> None:
    text = PAGE.read_text("utf-8")

    def section(title: str) -> str:
        status, lines = SECTIONS[title]
        return "\n".join(["", status, "", "```text", *lines(), "```"])

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [*SECTIONS]
    texts_in(PAGE, text, "## ", section)
