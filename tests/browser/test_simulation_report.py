"""The report of a simulation in a browser: it loads nothing, fits a phone, and says in words what its charts show."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser

from slidegate.cli.program import program

from .test_views import violations

pytestmark = pytest.mark.all

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo" / "sample.log"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report about the sample log, and a client with a path that no screen is wide enough for."""
    folder = tmp_path_factory.mktemp("report")
    file, wide = folder / "report.html", folder / "wide.log"
    line = f'198.51.100.9 - - [03/Mar/2026:10:30:00 +0000] "GET /{"x" * 500} HTTP/1.1" 200 5 "-" "Mozilla/5.0"\n'
    wide.write_text(line * 100)
    words = ["simulate", str(SAMPLE), str(wide), "--limit", "30/minute; 300/hour", "--ban-after", "20/10m"]
    words += ["--html", str(file)]
    done = CliRunner().invoke(program, [*words, "--quiet"])
    assert done.exit_code == 0, done.output
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_asks_for_nothing_fits_a_phone_and_axe_finds_nothing(
    scheme: str, report: Path, chromium: Browser
) -> None:
    for width in (1280, 375):
        wrong: list[str] = []
        context = chromium.new_context(viewport={"width": width, "height": 812}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message, wrong=wrong: wrong.append(message.text))
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.on("request", lambda request, wrong=wrong: wrong.append(request.url))
        page.goto(report.as_uri())
        assert wrong == [report.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        charts = page.get_by_role("img").all()
        names = [chart.get_attribute("aria-label") or "" for chart in charts]
        assert len(names) == 2
        assert all(any(character.isdigit() for character in name) for name in names), names
        assert violations(page) == []
        context.close()
