"""Reads an exposition with the parsers of Prometheus, as a scraping server does."""

import re
from collections.abc import Callable, Iterable
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


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """The values by the metric's name and its labels."""

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with this name and these labels."""
        found = [value for (other, has), value in self.items() if other == name and labels.items() <= has]
        assert found, f"no sample of {name} has {labels}"
        return sum(found)


def parsed(text: str, parse: Callable[[str], Iterable[Any]] = parse_text) -> Samples:
    """Return the samples of an exposition, without those that prometheus_client adds to each counter and histogram."""
    families, samples = list(parse(text)), Samples()
    assert len({family.name for family in families}) == len(families), "a family comes twice"
    for sample in (sample for family in families for sample in family.samples if not sample.name.endswith("_created")):
        series = sample.name, frozenset(sample.labels.items())
        assert series not in samples, f"{series} comes twice"
        samples[series] = sample.value
    return samples


async def scraped(app: Any) -> Samples:
    """Scrape in both formats, which must agree."""
    answer = await call(app, headers={"Accept": "text/plain"})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = parsed(answer.body.decode())
    other = await call(app, headers={"Accept": OPENMETRICS})
    assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.body.endswith(b"# EOF\n")
    openmetrics = parsed(other.body.decode(), parse_openmetrics)
    ours = [{series for series in one if series[0].startswith("slidegate_")} for one in (text, openmetrics)]
    assert ours[0] == ours[1]
    return text
