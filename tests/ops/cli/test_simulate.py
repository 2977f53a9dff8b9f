"""``slidegate simulate`` and ``slidegate suggest``: numbers that are right, or a sentence why there are none."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import subprocess
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slidegate import RateLimitMiddleware
from slidegate.ops.cli import run

from ...asgi import hello
from ..replay.test_server_logs import FORMAT
from .command import killed_if_it_hangs, start

SAMPLES = Path(__file__).resolve().parents[1] / "replay" / "samples"
SAMPLE = str(SAMPLES / "combined.log")
REAL_LOGS = sorted(Path(os.environ.get("SLIDEGATE_DATA", ".")).glob("logs/*"))
"""Real access logs, in the folder ``logs`` of SLIDEGATE_DATA, for those who have some."""
APPLICATION = """
from fastapi import FastAPI
from slidegate import RateLimitMiddleware, Rule

app = FastAPI()

@app.get("/items/{id}")
def item(id: int): raise AssertionError("the endpoint is called")

@app.post("/login")
def login(): raise AssertionError("the endpoint is called")

app.mount("/inner", RateLimitMiddleware(FastAPI(), limits="1/hour"))
app.add_middleware(RateLimitMiddleware, rules=[Rule("/health", exempt=True), Rule("*", "5/minute", name="all")])
bare = FastAPI()
bare.mount("/inner", RateLimitMiddleware(FastAPI(), limits="1/hour"))
"""


def line(second: float, client: str = "203.0.113.7", path: str = "/", status: int = 200, prefix: str = "") -> str:
    minutes, seconds = divmod(int(second), 60)
    time = f"03/Mar/2026:{10 + minutes // 60}:{minutes % 60:02}:{seconds:02} +0000"
    return f'{prefix}{client} - - [{time}] "GET {path} HTTP/1.1" {status} 1 "-" "curl/8"\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Run a command with ``--json``, and return its result."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def failure(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1) -> str:
    """Run a command that fails, and return its sentence."""
    capsys.readouterr()
    assert run(words) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("Error: ")
    return printed.err


def busy_log(seed: int) -> str:
    """Return a log of clients with various rates, some with a port in the address, in any order."""
    rng = random.Random(seed)
    lines = []
    for client in range(60):
        second, pace_s = float(rng.randrange(3_000)), rng.choice((0.02, 0.3, 5, 60))
        for number in range(rng.choice((1, 12, 70, 200))):
            second += rng.random() * pace_s
            address = f"[2001:db8:{client}::1]:{4000 + number}" if client % 2 else f"192.0.2.{client}:{number}"
            lines.append(line(second, address, rng.choice(("/", "/items/7", '/od%20d/"x"', "/a/b/c"))))
    rng.shuffle(lines)
    return "".join(lines)


# -- no silent nonsense ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("simulate", "--limit", "5/minute"), ("suggest",)], ids=lambda words: words[0])
def test_a_prefix_of_kubernetes_does_not_make_each_line_a_client(
    command: tuple[str, ...], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text("".join(line(n, prefix=f"2026-03-03T10:00:{n:02}.{n:09}Z stdout F ") for n in range(20)))
    result = found(capsys, *command, str(log))
    assert (result["requests"], result["clients"]) == (20, 1)
    if command[0] == "simulate":
        assert (result["passed"], result["refused"], result["refused_clients"]) == (5, 15, 1)
    else:
        assert result["routes"][0]["busiest"][0] == {
            **{"window": "10s", "50%": 10, "95%": 10, "99%": 10, "99.9%": 10, "most": 10}
        }


TLS = '192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "\\x16\\x03" 400 1\n'
UVICORN = 'INFO:     203.0.113.7:5123 - "GET / HTTP/1.1" 200 OK\n'
NONSENSE = {
    "no access log": (
        "half a li\n" * 3,
        ["3 of 3 lines cannot be read; line 1 of", "half a li", "--regex '(?P<client>"],
    ),
    "names of hosts": (line(0, "crawler.example.net") * 3, ["it contains no address of a client", "--regex"]),
    "what a terminal would obey": ("\x1b]0;owned\x07" * 40 + "\n", ["\\x1b]0;owned\\x07", "\u2026"]),
    "uvicorn": (UVICORN * 3, ["it contains no time", "--log-config", f'"fmt": {json.dumps(FORMAT)}']),
    "more than half": ("odd\n" * 11 + line(0) * 10, ["11 of 21 lines cannot be read"]),
    "a client for each line": (
        "".join(line(n, f"192.0.2.{n}") for n in range(120)),
        ["120 requests come from 120 clients, such as 192.0.2.0", "mean nothing", "--regex '(?P<client>"],
    ),
    "no HTTP": (TLS * 5, ["none of 5 records is an HTTP request"]),
    "nothing": ("\n", ["the log is empty"]),
}


@pytest.mark.parametrize("command", [("simulate", "--limit", "1/s"), ("suggest",), ("suggest", "--toml")])
@pytest.mark.parametrize("name", NONSENSE)
def test_a_log_whose_numbers_would_mean_nothing_ends_with_a_sentence(
    command: tuple[str, ...], name: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = NONSENSE[name]
    log.write_text(text)
    sentence = failure(capsys, *command, str(log))
    assert [word for word in words if word not in sentence] == []
    assert "\x1b" not in sentence


def test_a_short_log_may_have_a_client_for_each_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("".join(line(n, f"192.0.2.{n}") for n in range(99)))
    assert found(capsys, "suggest", str(log))["clients"] == 99


def test_what_was_left_out_is_noted(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidegate.ops.replay.logs.BUFFERED", 2)
    lines = [line(n, status=200) for n in range(100)]
    lines += ["odd\n", line(1), '192.0.2.7 - - [03/Mar/2026:10:30:00 +0000] "-" 408 0\n']
    log.write_text("".join(lines))
    assert run(["simulate", str(log), "--limit", "60/minute"]) == 0
    notes = capsys.readouterr().err
    assert (
        f"1 of 103 lines cannot be read; line 101 of '{log}': it contains no request of an access log: odd\n" in notes
    )
    assert "1 records are too far out of order" in notes
    assert "1 records are no HTTP requests, and are not counted" in notes
    assert "all requests come from 203.0.113.7; if that is a proxy, log the address of the client" in notes


# -- simulate ----------------------------------------------------------------------------------------------------------


def test_a_simulation_shows_rules_bans_and_refused_clients(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line(n / 4, "198.51.100.7", "/search?q=1") for n in range(60)] + [line(n, "192.0.2.1") for n in range(20)]
    log.write_text("".join(lines))
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\npath = "*"\nlimits = "20/minute"\n[bans.abuse]\nafter = "10/10m"\nduration = "1h"\n')
    command = ["simulate", str(log), "--rules", str(rules)]
    assert run(command) == 0
    text = capsys.readouterr().out
    assert text == (
        "80 requests of 2 clients, 2026-03-03T10:00:00Z to 2026-03-03T10:00:19Z\n"
        "40 passed, 40 (50 %) refused, of 1 (50 %) clients\n"
        "\n"
        "rule     kind   requests  refused  clients refused\n"
        "default  limit  50        10       1\n"
        "abuse    ban    0         30       1\n"
        "\n"
        "Refused most often\n"
        "client        requests  refused\n"
        "198.51.100.7  60        40\n"
    )
    result = found(capsys, *command)
    assert (result["passed"], result["refused"], result["refused_clients"]) == (40, 40, 1)
    assert [row["rule"] for row in result["rules"]] == ["default", "abuse"]


def test_a_client_is_one_whatever_its_port(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients = [f"192.0.2.7:{5_000 + n}" for n in range(10)] + [f"[2001:db8::1]:{n}" for n in range(1, 11)]
    log.write_text("".join(line(0, client) for client in clients))
    result = found(capsys, "simulate", str(log), "--limit", "4/hour")
    assert (result["clients"], result["refused"], result["refused_clients"]) == (2, 12, 2)
    assert [row["client"] for row in result["most_refused"]] == ["192.0.2.7", "2001:db8::/64"]


def test_rules_of_a_file_count_as_they_do_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEGATE_ENABLED", "0")  # it switches off applications, not simulations
    file = tmp_path / "slidegate.toml"
    file.write_text(
        'default_limits = "1/hour"\nclient = { ipv4_prefix = 24 }\n'
        '[[rules]]\npath = "*"\nlimits = "4/minute"\nwait = "1s"\nname = "slow"\n'
    )
    assert run(["simulate", SAMPLE, "--rules", str(file)]) == 0
    notes = capsys.readouterr().err
    assert "waits and permits cannot be replayed and are ignored: slow" in notes
    assert "default_limits count all requests of a client together; pass --app" in notes
    result = found(capsys, "simulate", SAMPLE, "--rules", str(file))
    assert "192.0.2.0/24" in {row["client"] for row in result["most_refused"]}


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"served_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APPLICATION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_an_application_is_replayed_with_its_middlewares(
    application: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text("".join(line(n, path="/health" if n % 2 else f"/items/{n}") for n in range(20)))
    assert run(["simulate", str(log), "--app", f"{application}:app"]) == 0
    assert "1 middlewares of routes or mounted applications are not replayed" in capsys.readouterr().err
    result = found(capsys, "simulate", str(log), "--app", f"{application}:app")
    assert (result["requests"], result["refused"]) == (20, 5)
    assert [(row["rule"], row["requests"]) for row in result["rules"]] == [("all", 10)]
    sentence = failure(capsys, "simulate", str(log), "--app", f"{application}:bare")
    assert "no RateLimitMiddleware around all of its routes; write its rules to a file for --rules" in sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), 'expected --limit "60/minute", --rules slidegate.toml or --app main:app, one of them'),
        (("--limit", "1/s", "--app", "main:app"), "one of them"),
        (("--limit", "5/minut"), "did you mean 'minute'?"),
        (("--limit", "1/s", "--regex", "(?P<time>.)"), "(?P<client>...)"),
        (("--limit", "1/s", "--preset", "apache"), "'nginx', 'caddy', 'traefik'"),
    ],
)
def test_wrong_usage_says_what_to_write(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in failure(capsys, "simulate", SAMPLE, *words, code=2)


def test_gzip_several_files_and_standard_input_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(line(1).encode() * 2))
    process = start("simulate", str(tmp_path / "a.log.gz"), "-", "--limit", "3/minute", "--json", stdin=subprocess.PIPE)
    with killed_if_it_hangs(process):
        result = json.loads(process.communicate(line(0).encode() * 2)[0])
    assert (result["requests"], result["refused"]) == (4, 1)
    assert "No such file" in failure(capsys, "simulate", str(tmp_path / "none.log"), "--limit", "3/minute")


# -- suggest -----------------------------------------------------------------------------------------------------------


def page_log() -> str:
    """Return two hours of 1,500 clients: most open a page or ten, twelve refresh a page, and one copies the site."""
    lines = [
        line((37 * client + second) % 7_200, f"198.51.{client // 250}.{client % 250}")
        for client in range(1_487)
        for second in range(0, 4 * (1 + client % 11), 1 + client % 3)
    ]
    lines += [line(10 * n, f"203.0.113.{client}") for client in range(1, 13) for n in range(150 + 10 * client)]
    lines += [line(3_600 + n / 8, "192.0.2.77", f"/pages/{n}") for n in range(2_400)]
    return "".join(lines)


@pytest.mark.parametrize("command", ["simulate", "suggest"])
def test_the_page_shows_what_the_command_prints(command: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "command.md").read_text("utf-8")
    shown = re.search(rf"^slidegate {command} access.log( ?[^\n]*)\n```\n\n```text\n([^`]*)```", page, re.MULTILINE)
    assert shown is not None
    log.write_text(page_log())
    assert run([command, str(log), *shlex.split(shown[1])]) == 0
    assert capsys.readouterr().out == shown[2]


def test_the_suggested_file_loads_and_refuses_as_many_as_it_says(
    application: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text(busy_log(7))
    monkeypatch.setattr("slidegate.ops.replay.report.QUANTILES", (0.5, 0.6))
    monkeypatch.setattr("slidegate.ops.replay.report.HEADROOM", 1)  # so that there are clients to refuse
    words = ("suggest", str(log), "--app", f"{application}:app")
    expected = [row["suggested"] for row in found(capsys, *words)["routes"] if row["route"] != "(no route)"]
    assert run([*words, "--toml"]) == 0
    text = capsys.readouterr().out
    assert "# (no route) has no path that a rule can name; its limits would be" in text
    for is_shadow, pasted in ((True, text), (False, text.replace("shadow = true", "shadow = false"))):
        file = tmp_path / "slidegate.toml"
        file.write_text(pasted)
        middleware = RateLimitMiddleware.from_file(hello, file).app
        assert [rule.action for rule in middleware.rules] == ["shadow" if is_shadow else "limit"] * 2
        result = found(capsys, "simulate", str(log), "--rules", str(file))
        assert (result["refused"] == 0) is is_shadow
        if is_shadow:
            refused = [(row["refused_clients"], row["refused"]) for row in result["rules"]]
            assert refused == [(row["clients"], row["requests"]) for row in expected]
            assert min(clients for clients, _ in refused) > 0


def test_nothing_of_a_log_becomes_a_line_of_the_configuration(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = {"remote_addr": "192.0.2.7", "status": 200, "request_method": "GET", "msec": 1_772_532_000}
    uris = ('/%22%0Aexempt = true#\x7f\u202e"\\', '/\n[[rules]]\npath = "*"\nexempt = true\x1b[2J')
    log.write_text("".join(json.dumps({**odd, "request_uri": uri}) + "\n" for uri in uris))
    for options in ((), ("--toml",)):
        assert run(["suggest", str(log), *options]) == 0
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert "exempt" not in text
    assert [set(rule) for rule in tomllib.loads(text)["rules"]] == [{"path", "limits", "shadow"}]


def test_suggested_limits_are_twice_the_largest_of_few_clients(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    log.write_text(busy_log(8))
    (everything,) = found(capsys, "suggest", str(log))["routes"]
    most = {row["window"]: row["most"] for row in everything["busiest"]}
    limits = dict(reversed(limit.split("/")) for limit in everything["suggested"]["limits"].split("; "))
    assert {window: int(amount) for window, amount in limits.items()}.items() <= {
        window: 2 * amount for window, amount in most.items()
    }.items()
    assert (everything["suggested"]["clients"], everything["suggested"]["requests"]) == (0, 0)


def test_routes_of_an_application_get_limits_of_their_own(
    application: str, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("".join(line(n, path=("/items/7", "/health", "/.env")[n % 3]) for n in range(30)))
    assert run(["suggest", str(log), "--app", f"{application}:app", "--toml"]) == 0
    text = capsys.readouterr().out
    assert "# (no route) has no path that a rule can name; its limits would be" in text
    everything, items = tomllib.loads(text)["rules"]
    assert (everything["path"], items["path"], items["methods"]) == ("*", "/items/{id}", ["GET"])
    assert "# If one of its parameters contains slashes, add the type: {name:path}" in text
    monkeypatch.setenv("SLIDEGATE_ENABLED", "0")  # it switches off applications, not what is measured
    rows = found(capsys, "suggest", str(log), "--app", f"{application}:app")["routes"]
    assert [(row["route"], row["requests"]) for row in rows] == [
        ("all", 20),
        ("GET /items/{id}", 10),
        ("(no route)", 10),
    ]
    file = tmp_path / "slidegate.toml"
    file.write_text(text)
    assert len(RateLimitMiddleware.from_file(hello, file).app.rules) == 2
    log.write_text(line(0, path="/health") * 3)
    sentence = failure(capsys, "suggest", str(log), "--app", f"{application}:app")
    assert "none of 3 records is an HTTP request that limits count" in sentence


# -- how long it takes, and real logs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("simulate", "--limit", "20/minute"), ("suggest",)], ids=lambda words: words[0])
def test_20_000_lines_take_a_few_seconds(command: Sequence[str], log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("".join(line(n / 6, f"192.0.2.{n * n % 251}", f"/{n % 97}") for n in range(20_000)))
    start = time.process_time()
    assert found(capsys, *command, str(log))["requests"] == 20_000
    assert time.process_time() - start < 8  # a quarter of it where nothing else runs


@pytest.mark.skipif(not REAL_LOGS, reason="needs real access logs: SLIDEGATE_DATA")
@pytest.mark.parametrize("path", REAL_LOGS, ids=lambda path: path.name)
def test_real_logs_are_read_and_decided(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "malformed" in path.name:
        assert "is an HTTP request" in failure(capsys, "suggest", str(path))
        return
    result = found(capsys, "simulate", str(path), "--limit", "30/minute")
    assert result["passed"] + result["refused"] == result["requests"] > 0
    assert result["refused_clients"] <= result["clients"] < result["requests"]
    measured = found(capsys, "suggest", str(path))
    assert (measured["requests"], measured["clients"]) == (result["requests"], result["clients"])
    (everything,) = measured["routes"]
    assert everything["suggested"]["clients"] <= measured["clients"] // 1_000
