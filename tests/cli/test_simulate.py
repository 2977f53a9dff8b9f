"""``slidegate simulate`` on the sample log."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from slidegate.cli import main
from slidegate.logs import AccessLogs

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "examples" / "demo" / "sample.log")
ORDINARY = ["simulate", SAMPLE, "--limit", "60/minute", "--ban-after", "20/10m", "--processes", "1"]


def test_the_totals_of_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDINARY, "--format", "json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    golden = {
        "requests": 5773, "clients": 84, "passed": 3004, "refused": 80, "refused_by_bans": 2689, "no_requests": 14,
        "clients_touched": 3, "touched_people": 0, "touched_scanners": 2, "touched_programs": 1, "bans": 4,
        "clients_banned": 3,
    }  # fmt: skip
    assert {name: found[name] for name in golden} == golden
    assert found["first"][0]["client"] == "198.51.100.77"
    assert found["rules"] == {"default": 80}
    assert [client["client"] for client in found["touched"]] == ["198.51.100.77", "198.51.100.150", "203.0.113.200"]
    assert "2 of 5,789 lines are no records" in printed.err


def test_text_says_whom_it_touches_and_why(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main([*ORDINARY, "--quiet"]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert "clients touched:                3" in printed.out
    assert "203 of 520 requests probe for known holes" in printed.out
    assert "/api/search" in printed.out


def test_csv_has_a_row_for_each_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDINARY, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 84
    assert sum(int(row["refused"]) for row in rows) == 80
    assert sum(int(row["requests"]) for row in rows) == 5773


def test_the_report_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main([*ORDINARY, "--html", str(page), "--quiet"]) == 0
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "default-src 'none'" in text
    for outside in ("http://", "https://", "<script", "<link", "url(", " src="):
        assert outside not in text
    assert "203.0.113.200" in text


def test_times_outside_of_since_and_until_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    span = ["--since", "2026-03-03T10:30:00", "--until", "2026-03-03T12:00:00+01:00"]
    assert main([*ORDINARY, *span, "--format", "json"]) == 0
    part = json.loads(capsys.readouterr().out)
    start_us, end_us = 1_772_533_800_000_000, 1_772_535_600_000_000
    inside = [record for record in AccessLogs([SAMPLE]) if start_us <= record.time_us < end_us and record.method]
    assert part["requests"] == len(inside) > 0
    assert main([*ORDINARY, "--since", "2030-01-01", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 0


def test_text_of_a_log_reaches_neither_terminal_nor_page_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page = tmp_path / "access.log", tmp_path / "report.html"
    line = '192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "GET /a%1b[2J<script>\x1b[31m HTTP/1.1" 200 9 "-" "\x1b[2J<b>"\n'
    log.write_text(line * 5)
    assert main(["simulate", str(log), "--limit", "1/hour", "--html", str(page), "--processes", "1"]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "<script>" not in page.read_text()
    assert "&lt;script&gt;" in page.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        [SAMPLE],
        [SAMPLE, "--limit", "many"],
        [SAMPLE, "--limit", "5/s", "--rules", "x.toml"],
        [SAMPLE, "--rules", "no/such.toml"],
        [SAMPLE, "--limit", "5/s", "--key", "agent"],
        [SAMPLE, "--limit", "5/s", "--since", "yesterday"],
        [SAMPLE, "--limit", "5/s", "--log-fields", "[1]"],
        [SAMPLE, "--limit", "5/s", "--html", "/"],
        ["no/such.log", "--limit", "5/s"],
        ["/", "--limit", "5/s"],
        [str(ROOT / "LICENSE"), "--limit", "5/s"],
        ["--limit", "5/s"],
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_interrupt_prints_what_was_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from slidegate.simulation.simulated import Simulated

    add, seen = Simulated.add, []

    def interrupted(self: Simulated, record: object) -> object:
        if len(seen) == 100:
            raise KeyboardInterrupt
        seen.append(record)
        return add(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(Simulated, "add", interrupted)
    assert main([*ORDINARY, "--format", "json"]) == 130
    assert json.loads(capsys.readouterr().out)["requests"] == 100
