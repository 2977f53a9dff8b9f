"""``slidegate suggest`` on the sample log."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from slidegate.cli import main

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "examples" / "demo" / "sample.log")
ORDINARY = ["suggest", SAMPLE]


def test_the_output_is_a_configuration_that_touches_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDINARY, "--quiet"]) == 0
    text = capsys.readouterr().out
    found = tomllib.loads(text)
    assert found["rules"][-1] == {"path": "*", "limits": "16/1s; 175/10s; 520/1m; 1450/1h"}
    assert found["bans"]["scanners"] == {"after": "5/1m", "signals": {"404": 1}}
    assert "# Warning: the log covers 2.0 hours" in text
    file = tmp_path / "slidegate.toml"
    file.write_text(text)
    assert main(["simulate", SAMPLE, "--rules", str(file), "--format", "json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert simulated["clients_touched"] == 0
    assert simulated["clients_banned"] == 2


def test_json_holds_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDINARY, "--routes", "1", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [rule["path"] for rule in found["rules"]] == ["/api/search", "*"]
    assert found["rules"][0]["limits"] == {"1s": 15, "10s": 156, "1m": 431, "1h": 1450}
    assert found["bans"]["caught"] == 2


@pytest.mark.parametrize(
    "arguments",
    [[SAMPLE, "--touch", "few"], [SAMPLE, "--touch", "101%"], ["-"], ["no/such.log"], [SAMPLE, "--key", "x"]],
)
def test_bad_input_is_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_the_page_shows_the_real_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "guides" / "choosing_a_number.md").read_text("utf-8")
    found = re.search(r"^slidegate (suggest [^\n]*)\n```\n\n```text\n([^`]*)```", page, re.MULTILINE)
    assert found is not None
    monkeypatch.chdir(ROOT)
    assert main([*found[1].split()]) == 0
    assert capsys.readouterr().out == found[2]


def test_a_fraction_is_answered_with_the_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest", SAMPLE, "--touch", "0.5"]) == 2
    assert "did you mean '50%'?" in capsys.readouterr().err
