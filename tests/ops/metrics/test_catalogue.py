"""The table of the metrics in the documentation is the one in the code, and its names follow the conventions."""

from __future__ import annotations

import re
from pathlib import Path

from slidegate.ops.metrics.catalogue import CATALOGUE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "metrics.md"


def test_the_page_lists_every_metric_as_it_is() -> None:
    rows = [
        f"| `{metric.name}` | `{metric.prometheus}` | {metric.kind} | {metric.unit} | {', '.join(metric.attributes)} "
        f"| {metric.help} |"
        for metric in CATALOGUE
    ]
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if re.match(r"\| `slidegate\.[^|]*` \| `slidegate_", line)]
    assert listed == rows


def test_names_follow_the_conventions_of_both() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert re.fullmatch(r"slidegate(\.[a-z]+(_[a-z]+)*)+", metric.name), metric.name
        assert re.fullmatch(r"slidegate(_[a-z]+)+", metric.prometheus), metric.prometheus
        assert metric.prometheus.endswith("_total") == (metric.kind == "counter")
        assert metric.prometheus.endswith("_seconds") == (metric.unit == "s")
        assert metric.attributes[-1] == "store"
        assert metric.help.endswith(".")


def test_no_attribute_is_one_that_a_client_can_choose() -> None:
    known = {"route", "rule", "outcome", "store", "kind", "list", "version", "compiled"}
    assert {label for metric in CATALOGUE for label in metric.attributes} == known
