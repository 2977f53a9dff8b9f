"""``slidegate simulate`` on the sample log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slidegate import Limiter, header
from slidegate.cli import main
from slidegate.logs import AccessLogs

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "examples" / "demo" / "sample.log")
ORDINARY = ["simulate", SAMPLE, "--limit", "60/minute", "--ban-after", "20/10m"]


def test_the_totals_of_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ORDINARY) == 0
    text = capsys.readouterr().out
    for words in ("clients touched:                3", "203 of 520 requests probe for vulnerabilities", "/api/search"):
        assert words in text
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
    assert found["rules"] == [{"rule": "default", "requests": 80, "clients": 3}]
    assert [client["client"] for client in found["touched"]] == ["198.51.100.77", "198.51.100.150", "203.0.113.200"]
    assert "2 of 5,789 lines are not records" in printed.err


def test_the_off_switch_of_applications_does_not_disable_a_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEGATE_ENABLED", "0")
    assert main([*ORDINARY, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == 80


def test_a_client_has_one_name_in_all_tables_which_the_other_commands_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "access.jsonl"
    line = {"remote_addr": "192.0.2.7", "request": "GET / HTTP/1.1", "status": 200, "http_x_api_key": "k\u00e91"}
    log.write_text("".join(json.dumps({**line, "msec": 1_772_532_000 + second}) + "\n" for second in range(20)))
    command = ["simulate", str(log), "--limit", "5/minute", "--ban-after", "5/10m", "--key", "header:X-API-Key"]
    assert main([*command, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    name = Limiter().key_for(header("X-API-Key").of("k\u00e91".encode()))
    assert name.startswith("header:x-api-key#")
    assert {row["client"] for table in ("first", "touched", "banned") for row in found[table]} == {name}


def test_clients_are_those_of_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "slidegate.toml"
    rules.write_text('limits = "60/minute"\nbans = { abuse = { after = "20/10m" } }\nclient = { ipv4_prefix = 24 }\n')
    assert main(["simulate", SAMPLE, "--rules", str(rules), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    touched, banned = ({row["client"] for row in found[table]} for table in ("touched", "banned"))
    assert "198.51.100.0/24" in banned <= touched


def test_limits_of_routes_count_together_because_a_log_does_not_contain_routes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "slidegate.toml"
    rules.write_text('default_limits = "60/minute"\n')
    assert main(["simulate", SAMPLE, "--rules", str(rules)]) == 0
    assert "default_limits count all requests of a client together" in capsys.readouterr().err


def test_times_outside_of_since_and_until_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    span = ["--since", "2026-03-03T10:30:00", "--until", "2026-03-03T12:00:00+01:00"]
    assert main([*ORDINARY, *span, "--format", "json"]) == 0
    part = json.loads(capsys.readouterr().out)
    start_us, end_us = 1_772_533_800_000_000, 1_772_535_600_000_000
    inside = [record for record in AccessLogs([SAMPLE]) if start_us <= record.time_us < end_us and record.method]
    assert part["requests"] == len(inside) > 0


EMPTY = '192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "\\x16\\x03" 400 1 "-" "-"\n' * 5
COVERED = "the log covers 2026-03-03T10:00:00Z to 2026-03-03T11:59:"


@pytest.mark.parametrize("command", [("simulate", "--limit", "1/s"), ("suggest",)], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        (None, ("--since", "2030-01-01"), COVERED),
        (None, ("--until", "1970-01-01"), COVERED),
        (None, ("--key", "header:X-API-Key"), "no request in this log has the header X-API-Key"),
        (EMPTY, (), "none of 5 records is an HTTP request"),
        ("half a li\n", (), "none of 1 lines is a record of an access log; line 1 of"),
        ("", (), "the log is empty"),
    ],
)
def test_a_log_with_nothing_to_count_says_so(
    command: tuple[str, ...],
    content: str | None,
    words: tuple[str, ...],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "access.log"
    log.write_text(Path(SAMPLE).read_text() if content is None else content)
    assert main([*command, str(log), *words]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("Error: ")
    assert told in printed.err


def test_kinds_go_by_the_share_of_requests_and_errors_of_the_server_are_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(client: str, second: int, path: str, status: int, agent: str = "Mozilla/5.0") -> str:
        time = f"03/Mar/2026:10:{second // 60:02}:{second % 60:02} +0000"
        return f'{client} - - [{time}] "GET {path} HTTP/1.1" {status} 1 "-" "{agent}"\n'

    log = tmp_path / "access.log"
    lines = [line("192.0.2.1", second, "/", 200 if second % 4 else 503) for second in range(100)]
    # An office behind one address: three of a hundred requests are probes, and one comes from a feed reader.
    lines += [
        line("192.0.2.2", second, "/.env" if second < 3 else "/", 404 if second < 3 else 200) for second in range(99)
    ]
    lines += [line("192.0.2.2", 99, "/feed", 200, "ExampleBot/2.1")]
    lines += [line("192.0.2.3", second, "/wp-login.php" if second % 2 else "/", 404) for second in range(20)]
    log.write_text("".join(lines))
    assert main(["simulate", str(log), "--limit", "5/hour", "--format", "json"]) == 0
    rows = {row["client"]: row for row in json.loads(capsys.readouterr().out)["touched"]}
    assert {client: row["kind"] for client, row in rows.items()} == {
        "192.0.2.1": "person",
        "192.0.2.2": "person",
        "192.0.2.3": "scanner",
    }
    assert "75% of its requests succeed" in rows["192.0.2.1"]["why"]
    assert "97% of its requests succeed" in rows["192.0.2.2"]["why"]


def test_a_client_with_a_port_is_one_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "access.log"
    clients = [f"192.0.2.7:{5_000 + n}" for n in range(10)] + [f"[2001:db8::1]:{n}" for n in range(1, 11)]
    log.write_text("".join(f'{one} - - [03/Mar/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1\n' for one in clients))
    assert main(["simulate", str(log), "--limit", "4/hour", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clients"], found["refused"], found["clients_touched"]) == (2, 12, 2)
    assert [one["client"] for one in found["touched"]] == ["192.0.2.7", "2001:db8::/64"]
