"""Reads an exposition with the parsers of Prometheus, as a scraping server does."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ..asgi import call

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "guides" / "metrics.md"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"


class Metric(NamedTuple):
    """A row of the table in the documentation."""

    name: str
    prometheus: str
    kind: str
    labels: set[str]
    help: str


def documented() -> list[Metric]:
    """Return the table of metrics in the documentation, whose names for Prometheus follow the rule above it."""
    endings, found = {"counter": "_total", "histogram": "_seconds"}, []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| `slidegate."):
            name, kind, labels, text = re.split(r" *\| *", line.replace("`", "", 2).strip("| "))
            prometheus = name.replace(".", "_") + endings.get(kind, "")
            found.append(Metric(name, prometheus, kind, {*filter(None, labels.split(", ")), "store"}, text))
    return found


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""The values by the metric's name and its labels."""


def sum_of(samples: Samples, name: str, labels: dict[str, str]) -> float:
    """Return the sum of all samples with this name and these labels."""
    found = [value for (other, has), value in samples.items() if other == name and labels.items() <= has]
    assert found, f"no sample of {name} has {labels}"
    return sum(found)


class Exposition:
    def __init__(self, families: Iterable[Any]) -> None:
        self.families: dict[str, Any] = {}
        self.samples: Samples = {}
        for family in families:
            if family.name.endswith("_created"):  # prometheus_client adds these to each counter and histogram
                continue
            assert family.name not in self.families, f"{family.name} comes twice"
            self.families[family.name] = family
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                series = sample.name, frozenset(sample.labels.items())
                assert series not in self.samples, f"{series} comes twice"
                self.samples[series] = sample.value

    def value(self, name: str, **labels: str) -> float:
        return sum_of(self.samples, name, labels)


def parsed(text: str) -> Exposition:
    return Exposition(parse_text(text))


async def scraped(app: Any) -> Exposition:
    """Scrape in both formats, which must agree."""
    answer = await call(app, headers={"Accept": "text/plain"})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = parsed(answer.body.decode())
    other = await call(app, headers={"Accept": OPENMETRICS})
    assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.body.endswith(b"# EOF\n")
    openmetrics = Exposition(parse_openmetrics(other.body.decode()))
    ours = [{series for series in one.samples if series[0].startswith("slidegate_")} for one in (text, openmetrics)]
    assert ours[0] == ours[1]
    return text
