"""``slidegate shadow report`` on recorded events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slidegate.ops.command import main


def test_requests_and_clients_of_shadow_rules_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"kind": "shadow_refused", "rule": "api", "key": "192.0.2.1", "suppressed": 3},
        {"kind": "shadow_refused", "rule": "api", "key": "192.0.2.2"},
        {"kind": "shadow_banned", "policy": "abuse", "key": "192.0.2.2"},
        {"kind": "refused", "rule": "api", "key": "192.0.2.3"},
    ]
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "no event\n[1]\n")
    assert main(["shadow", "report", str(log), "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == [
        {"kind": "shadow_refused", "name": "api", "times": 5, "clients": 2},
        {"kind": "shadow_banned", "name": "abuse", "times": 1, "clients": 1},
    ]
    assert "3 events were left out" in printed.err


def test_a_file_without_events_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("nothing\n")
    for name in (str(log), str(tmp_path), str(tmp_path / "missing")):
        assert main(["shadow", "report", name]) == 2
        assert capsys.readouterr().err.count("\n") == 1
