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
ORDINARY = ["simulate", SAMPLE, "--limit", "60/minute", "--ban-after", "20/10m"]


def test_the_totals_of_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDINARY, "--format", "json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    golden = {
        "requests": 5773, "clients": 84, "passed": 3034, "refused": 80, "refused_by_bans": 2659, "no_requests": 14,
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
    assert text.count("<svg") == 2
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


@pytest.mark.parametrize("span", [["--since", "2030-01-01"], ["--until", "1970-01-01"]], ids=" ".join)
@pytest.mark.parametrize("command", ["simulate", "suggest"])
def test_a_range_that_holds_nothing_says_which_range_the_log_covers(
    command: str, span: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--limit", "1/s"] if command == "simulate" else []
    assert main([command, SAMPLE, *options, *span]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "the log covers 2026-03-03T10:00:00Z to 2026-03-03T11:59:" in printed.err


@pytest.mark.parametrize("command", ["simulate", "suggest"])
def test_a_key_that_the_log_does_not_hold_is_said(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--limit", "1/s"] if command == "simulate" else []
    assert main([command, SAMPLE, *options, "--key", "header:X-API-Key"]) == 2
    assert "no request of this log has a field X-API-Key" in capsys.readouterr().err
    log = tmp_path / "some.log"
    log.write_text("".join(f'192.0.2.7 [2026-03-03T10:00:0{n}Z] "GET / HTTP/1.1" 200 "{n or "-"}"\n' for n in range(5)))
    format = '$remote_addr [$time_iso8601] "$request" $status "$http_x_api_key"'
    assert main([command, str(log), *options, "--key", "header:X-API-Key", "--log-format", format]) == 0
    assert "1 of 5 requests have no field X-API-Key; they count by address" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["simulate", "suggest"])
def test_a_log_without_any_request_says_so(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "probes.log"
    log.write_text('192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "\\x16\\x03" 400 1 "-" "-"\n' * 5)
    options = ["--limit", "1/s"] if command == "simulate" else []
    assert main([command, str(log), *options]) == 2
    assert "none of 5 records is an HTTP request" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_before_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing" / "report.html"
    assert main(["simulate", str(tmp_path / "no-log-is-read"), "--limit", "1/s", "--html", str(missing)]) == 2
    assert "no-log-is-read" in capsys.readouterr().err
    assert main([*ORDINARY, "--html", str(missing)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "--html: expected a file in a directory that is there" in printed.err


def test_kinds_go_by_the_share_of_requests_and_errors_of_the_server_are_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(client: str, second: int, path: str, status: int, agent: str = "Mozilla/5.0") -> str:
        time = f"03/Mar/2026:10:{second // 60:02}:{second % 60:02} +0000"
        return f'{client} - - [{time}] "GET {path} HTTP/1.1" {status} 1 "-" "{agent}"\n'

    log = tmp_path / "access.log"
    lines = [line("192.0.2.1", second, "/", 200 if second % 4 else 503) for second in range(100)]
    # An office: behind one address three requests of a hundred look for holes, and one comes from a feed reader.
    lines += [
        line("192.0.2.2", second, "/.env" if second < 3 else "/", 404 if second < 3 else 200) for second in range(99)
    ]
    lines += [line("192.0.2.2", 99, "/feed", 200, "ExampleBot/2.1")]
    lines += [line("192.0.2.3", second, "/wp-login.php" if second % 2 else "/", 404) for second in range(20)]
    log.write_text("".join(lines))
    assert main(["simulate", str(log), "--limit", "5/hour", "--format", "csv"]) == 0
    rows = {row["client"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert {client: row["kind"] for client, row in rows.items()} == {
        "192.0.2.1": "person",
        "192.0.2.2": "person",
        "192.0.2.3": "scanner",
    }
    assert "75% of its requests succeed" in rows["192.0.2.1"]["why"]
    assert "97% of its requests succeed" in rows["192.0.2.2"]["why"]


def test_text_of_a_log_reaches_neither_terminal_nor_page_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page = tmp_path / "access.log", tmp_path / "report.html"
    line = '192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "GET /a%1b[2J<script>\x1b[31m HTTP/1.1" 200 9 "-" "\x1b[2J<b>"\n'
    log.write_text(line * 5)
    assert main(["simulate", str(log), "--limit", "1/hour", "--html", str(page)]) == 0
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
    from slidegate.simulation.report import Simulated

    add, seen = Simulated.add, []

    def interrupted(self: Simulated, record: object) -> object:
        if len(seen) == 100:
            raise KeyboardInterrupt
        seen.append(record)
        return add(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(Simulated, "add", interrupted)
    assert main([*ORDINARY, "--format", "json"]) == 130
    assert json.loads(capsys.readouterr().out)["requests"] == 100
