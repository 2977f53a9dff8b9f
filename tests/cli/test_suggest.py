"""``slidegate suggest``: its output is valid TOML, whose rules refuse exactly the reported number of clients."""

from __future__ import annotations

import json
import os
import random
import re
import tomllib
from pathlib import Path

import pytest

from slidegate import ConfigurationError, RateLimitMiddleware
from slidegate.cli import main

from ..asgi import hello
from .stores_at_hand import run

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "examples" / "demo" / "sample.log")
SAYS = re.compile(r"# Would have refused ([\d,]+) of ([\d,]+) clients \(([\d,]+) requests\)\.")
TOGETHER = re.compile(r"# Enforced together, these rules would have refused ([\d,]+) of the clients\.")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def suggested(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run("suggest", *words) == 0
    return capsys.readouterr().out


def simulated(text: str, log: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    file = directory / "slidegate.toml"
    file.write_text(text, "utf-8")
    assert run("simulate", log, "--rules", str(file), "--format", "json") == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def busy_log(directory: Path, rng: random.Random) -> str:
    """Write a log of clients with various rates, some with a port in the address, some without a key."""
    lines = []
    for client in range(40):
        second = float(rng.randrange(3_000))
        pace_s = rng.choice((0.02, 0.3, 5, 60))
        for place in range(rng.choice((1, 12, 70, 200))):
            second += rng.random() * pace_s
            path = rng.choice(("/", "/items/7", '/od%20d/"x"', "/a/b/c"))
            address = f"[2001:db8:{client}::1]:{4000 + place}" if client % 2 else f"192.0.2.{client}:{place}"
            key = f"k{client // 3}" if client % 5 else "-"
            lines.append(f'{address} {1_772_532_000 + second:.6f} "GET {path} HTTP/1.1" 200 "{key}"\n')
    rng.shuffle(lines)
    file = directory / "busy.log"
    file.write_text("".join(lines))
    return str(file)


BUSY = ("--log-format", '$remote_addr $msec "$request" $status "$http_x_api_key"')


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("sample", ("--touch", "5%")),
        ("busy", ()),
        ("busy", ("--touch", "30%", "--headroom", "1")),
        ("busy", ("--touch", "60%", "--headroom", "1.3", "--routes", "2")),
        ("busy", ("--key", "header:X-API-Key", "--touch", "40%", "--headroom", "1")),
    ],
)
def test_the_pasted_text_loads_and_refuses_exactly_as_many_clients_as_it_says(
    log: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], rng: random.Random
) -> None:
    name, options = (SAMPLE, ()) if log == "sample" else (busy_log(tmp_path, rng), BUSY)
    text = suggested(capsys, name, *words, *options)
    rules = tomllib.loads(text)["rules"]
    shadow = "shadow = true  # counts but never refuses; delete this line to enforce the rule\n"
    assert text.count(shadow) == len(rules)
    said = [tuple(map(number, found)) for found in SAYS.findall(text)]
    assert len(said) == len(rules) >= 2

    file = tmp_path / "slidegate.toml"
    for pasted in (text, text.replace("shadow = true", "shadow = false")):
        file.write_text(pasted, "utf-8")
        assert run("simulate", name, "--rules", str(file), "--format", "json", *options) == 0
        found = json.loads(capsys.readouterr().out)
        if pasted is text:
            refused = {rule["rule"]: rule["clients"] for rule in found["shadow_rules"]}
            labels = [rule.label for rule in RateLimitMiddleware.from_file(hello, file, store="memory://").app.rules]
            assert [refused.get(label, 0) for label in labels] == [clients for clients, _, _ in said]
            assert (found["refused"], found["clients_touched"]) == (0, 0), "shadow rules refuse nobody"
        elif "--key" not in words:  # `simulate --rules` identifies clients by address
            (together,) = map(number, TOGETHER.findall(text))
            assert found["clients_touched"] == together


def test_nothing_that_a_log_holds_becomes_a_line_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        **{"remote_addr": 'x\n[[rules]]\npath = "*"\nexempt = true\x1b[2J', "status": 200, "request_method": "GET"},
        **{"time_iso8601": "2026-03-03T10:00:00Z", "request_uri": '/%22%0Aexempt%20=%20true%0A#\x7f\u202e"\\'},
    }
    log = tmp_path / "access.log"
    log.write_text(f"{json.dumps(line)}\n" * 50)
    text = suggested(capsys, str(log))
    assert "\x1b" not in text
    assert all(set(rule) == {"path", "limits", "shadow"} for rule in tomllib.loads(text)["rules"])
    assert simulated(text, str(log), tmp_path, capsys)["requests"] == 50


@pytest.mark.parametrize("headroom", [1, 2, 3.5])
def test_limits_have_headroom_and_none_is_below_what_one_page_load_makes(
    headroom: float, capsys: pytest.CaptureFixture[str]
) -> None:
    def limits(factor: float) -> dict[tuple[str, str], int]:
        words = () if factor == 2 else ("--headroom", str(factor))  # 2 is the default
        found = json.loads(suggested(capsys, SAMPLE, "--format", "json", *words))
        assert found["headroom"] == factor
        return {(rule["path"], span): most for rule in found["rules"] for span, most in rule["limits"].items()}

    tight, roomy = limits(1), limits(headroom)
    assert min(roomy.values()) == 10
    assert {roomy[place] for place in roomy.keys() & tight.keys() if tight[place] > 10}
    for place in roomy.keys() & tight.keys():
        if tight[place] > 10:  # the peak, not the minimum of a page load
            assert tight[place] * headroom <= roomy[place] < tight[place] * headroom + 1


def test_a_pipe_is_wrong_usage_because_it_cannot_be_read_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run("suggest", SAMPLE, str(tmp_path / "pipe")) == 2  # without opening it, which would block
    assert "a pipe or standard input does not allow" in capsys.readouterr().err


def test_where_every_client_may_be_refused_there_is_no_rule_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = suggested(capsys, SAMPLE, "--touch", "100%")
    assert "# No limits: " in text
    file = tmp_path / "slidegate.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="expected limits"):
        RateLimitMiddleware.from_file(hello, file)


def test_the_page_shows_the_real_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "guides" / "command.md").read_text("utf-8")
    found = re.search(r"^slidegate (suggest [^\n]*)\n```\n\n```text\n([^`]*)```", page, re.MULTILINE)
    monkeypatch.chdir(ROOT)
    assert main([*found[1].split()]) == 0
    assert capsys.readouterr().out == found[2]
