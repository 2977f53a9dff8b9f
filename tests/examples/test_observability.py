"""The dashboard and the alert rules ask for metrics and labels that the example really exposes."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

pytestmark = pytest.mark.all

EXAMPLE: Final = "examples.observability.app"
PLACE: Final = Path(__file__).resolve().parents[2] / "examples" / "observability"
DASHBOARD: Final = json.loads((PLACE / "grafana-dashboard.json").read_text(encoding="utf-8"))
PROMTOOL: Final = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt install prometheus")
OF_SCRAPES: Final = {"job", "instance"}
"""Labels that Prometheus itself adds."""


@pytest.fixture(scope="module")
def exposition() -> Iterator[str]:
    """What the example says after some requests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("STORE", raising=False)
        example = importlib.import_module(EXAMPLE)
    with TestClient(example.app) as client:
        statuses = [client.get("/search").status_code for _ in range(25)]
        assert set(statuses) == {200, 429}
        assert client.post("/orders/7").json() == {"ordered": "7"}
        answer = client.get("/metrics/")
        assert answer.status_code == 200
        yield answer.text
    example.metrics.close()


@pytest.fixture(scope="module")
def exposed(exposition: str) -> dict[str, set[str]]:
    """The names of all samples, each with the labels that it may have."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """Return the expressions of all panels and all alerts."""
    rules = (PLACE / "alerts.yml").read_text(encoding="utf-8")
    asked = re.findall(r"^ +expr: (?:>-\n((?: {10}.*\n)+)|(.+)\n)", rules, re.MULTILINE)
    alerts = [" ".join(folded.split()) or line for folded, line in asked]
    assert len(alerts) == rules.count("- alert: ") > 5
    return [*alerts, *(target["expr"] for panel in panels() for target in panel["targets"])]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_metrics_and_labels_that_are_exposed(expression: str, exposed: dict[str, set[str]]) -> None:
    names = re.findall(r"\bslidegate_\w+", expression)
    assert names
    labels = set(re.findall(r"(\w+)=~?\"", expression))
    for listed in re.findall(r"by \(([^)]*)\)", expression):
        labels |= set(re.findall(r"\w+", listed))
    # Entries of lists are there where there is a list.
    known = {**exposed, "slidegate_list_entries": {"list", "kind", "store"}}
    assert set(names) <= set(known)
    assert labels <= OF_SCRAPES.union(*(known[name] for name in names))


def promtool(*command: str, typed: str | None = None) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *command], input=typed, capture_output=True, text=True, cwd=PLACE, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize(
    "command",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml"), ("check", "config", "prometheus.yml")],
    ids=" ".join,
)
def test_promtool_accepts(command: tuple[str, ...]) -> None:
    promtool(*command)


@needs_promtool
def test_promtool_finds_nothing_to_improve_in_the_exposition(exposition: str) -> None:
    promtool("check", "metrics", typed=exposition)


@needs_promtool
def test_promtool_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    written = [
        {
            "record": f"panel:number{number}:sum",
            "expr": expression.replace("$__rate_interval", "5m").replace("$job", ".*"),
        }
        for number, expression in enumerate(expressions())
    ]
    rules = tmp_path / "rules.yml"
    rules.write_text(json.dumps({"groups": [{"name": "all", "rules": written}]}), encoding="utf-8")
    promtool("check", "rules", str(rules))
