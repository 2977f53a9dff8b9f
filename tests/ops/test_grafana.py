"""The Grafana dashboard and the alerts of the docs, checked against the metrics of real traffic."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from slidegate import BanPolicy, Networks, Rule

from .exposition import scraped
from .site import Site

DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_ALERTS = [alert["expr"] for alert in ALERTS]
GROUPED = re.compile(r"\bby \(([^)]*)\)")
MATCHED = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
METRIC = re.compile(r"slidegate_\w+")
WITHOUT_SAMPLES = {"unavailable"}
"""Values that need a failing store."""


@pytest.fixture
async def series() -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric, after traffic of every kind."""
    rules = [Rule("*", "3/hour", name="service"), Rule("*", "1/hour", name="trial", shadow=True)]
    bans = BanPolicy(after="2/10m", duration="1h", ban_private=True)
    site = Site(rules, blocklist=Networks(["192.0.2.0/24"]), bans=bans)
    await site.visit(*["/items/1"] * 7)
    await site.visit("/items/1", client=("192.0.2.1", 1))
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, labels in await scraped(site.metrics.app):
        for label, value in labels:
            found[name][label].add(value)
    return found


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *OF_ALERTS])
async def test_every_metric_label_and_value_of_an_expression_exists(
    expression: str, series: dict[str, dict[str, set[str]]]
) -> None:
    (metric, *others) = dict.fromkeys(METRIC.findall(expression))
    for name in (metric, *others):
        assert name in series, f"{name} is not exported"
    grouped = {label for labels in GROUPED.findall(expression) for label in labels.split(", ")}
    assert grouped <= series[metric].keys()
    for label, _, pattern in MATCHED.findall(expression):
        for value in pattern.split("|"):
            assert value in series[metric][label] | WITHOUT_SAMPLES, f"{metric} has no {label}={value}"


def test_every_metric_is_on_the_dashboard(series: dict[str, dict[str, set[str]]]) -> None:
    shown = {name for expression in EXPRESSIONS for name in METRIC.findall(expression)}
    assert {name for name in series if name.startswith("slidegate_")} - shown == {
        "slidegate_request_duration_seconds_sum"
    }


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *OF_ALERTS])
def test_counters_are_read_as_rates_and_gauges_as_they_are(expression: str) -> None:
    assert expression.count("(") == expression.count(")")
    for name in METRIC.findall(expression):
        is_counter = name.endswith(("_total", "_count", "_bucket"))
        after = expression.partition(name)[2]
        has_range = re.match(r"(\{[^}]*\})?\[(\$__rate_interval|10m)\]", after) is not None
        assert is_counter == has_range, name


def test_legends_name_labels_of_their_expressions() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            grouped = {label for labels in GROUPED.findall(target["expr"]) for label in labels.split(", ")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == grouped - {"le"}
