"""`slidegate run`: real servers in front of an application that does not know, and bad input before any start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from slidegate import ConfigurationError
from slidegate.asgi import app as factory
from slidegate.cli import main

from ..redis_servers import free_port, until
from .stores_at_hand import ROOT, environment

APP = "tests.cli.guarded_app:app"
RULES = '[[rules]]\npath = "/items/{id}"\nlimits = "20/hour"\nname = "items"\n'
TIMEOUT_S = 60
TOKEN = "0123456789abcdef0123456789"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "slidegate.toml"
    path.write_text(RULES, "utf-8")
    return path


@contextmanager
def served(*options: str, log: Path, **more: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve the application by the command until the block ends; then interrupt it, as a terminal does."""
    port = free_port()
    command = [sys.executable, "-m", "slidegate", "run", *options, "--port", str(port)]
    with log.open("wb") as said:
        # A group of its own: Ctrl-C goes to all processes of it.
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment(**more), start_new_session=True)
        try:
            yield f"http://127.0.0.1:{port}", process
            os.killpg(process.pid, signal.SIGINT)
            process.wait(TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(TIMEOUT_S)


def answered(url: str, process: subprocess.Popen[bytes]) -> httpx.Response:
    """Return the first answer of a server that is starting."""
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return httpx.get(url, timeout=TIMEOUT_S)
        except httpx.TransportError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < until_s, "the server did not start"
            time.sleep(0.05)


def is_gone(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether no process of a group is left."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_two_workers_on_one_file_have_one_count_and_one_token_and_end_together(rules: Path, tmp_path: Path) -> None:
    pytest.importorskip("itsdangerous")
    log = tmp_path / "log"
    rules.write_text(f'store = "lmdb://{tmp_path / "of_the_file"}"\ndeadline = "1s"\n{RULES}', "utf-8")
    options = (APP, "--rules", str(rules), "--workers", "2", "--store", f"lmdb://{tmp_path / 'store'}")
    with served(*options, "--dashboard", "/middleware", log=log, SLIDEGATE_DASHBOARD_TOKEN="") as (url, process):
        seen = [answered(f"{url}/items/1", process)]
        # A connection each, so that both workers take some.
        seen += [httpx.get(f"{url}/items/{number}", timeout=TIMEOUT_S) for number in range(39)]
        assert httpx.get(f"{url}/other", timeout=TIMEOUT_S).status_code == 404
        (token,) = re.findall(r"not shown again: (\S+)", log.read_text("utf-8"))
        fields = {"authorization": f"Bearer {token}"}
        asked = [httpx.get(f"{url}/middleware/api/now?window=1m", timeout=TIMEOUT_S, headers=fields) for _ in range(6)]
    assert sorted(answer.status_code for answer in seen) == [200] * 20 + [429] * 20
    assert {answer.headers["content-type"] for answer in seen if answer.status_code == 429} == {
        "application/problem+json"
    }
    assert {answer.status_code for answer in asked} == {200}
    assert process.returncode in {0, 130}
    until(lambda: is_gone(process), "the workers end")
    assert log.read_text("utf-8").count(token) == 1
    assert "Traceback" not in log.read_text("utf-8")
    assert "per process" not in log.read_text("utf-8")
    assert not (tmp_path / "of_the_file").exists()


def test_a_store_that_is_away_is_told_of_at_the_start_and_the_server_starts(rules: Path, tmp_path: Path) -> None:
    pytest.importorskip("redis")
    log = tmp_path / "log"
    away = f"redis://127.0.0.1:{free_port()}/0"
    with served(APP, "--rules", str(rules), "--store", away, log=log) as (url, process):
        until(lambda: b"does not answer" in log.read_bytes(), "it is told before a request comes")
        assert answered(f"{url}/items/1", process).status_code == 200
    assert log.read_text("utf-8").count("does not answer, so on_error='local' decides until it does: ") == 1


def test_the_dashboard_stands_beside_the_application(rules: Path, tmp_path: Path) -> None:
    pytest.importorskip("itsdangerous")
    options = (APP, "--rules", str(rules), "--dashboard", "/ops/middleware/")
    log = tmp_path / "log"
    with served(*options, log=log, SLIDEGATE_DASHBOARD_TOKEN=TOKEN) as (url, process):
        page = answered(f"{url}/ops/middleware/", process)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        moved = httpx.get(f"{url}/ops/middleware", timeout=TIMEOUT_S)
        assert (moved.status_code, moved.headers["location"]) == (307, "middleware/")
        assert httpx.get(f"{url}/items/1", timeout=TIMEOUT_S).status_code == 200
        asked = f"{url}/ops/middleware/api/now?window=1m"
        assert httpx.get(asked, timeout=TIMEOUT_S).status_code == 401
        with_token = httpx.get(asked, timeout=TIMEOUT_S, headers={"authorization": f"Bearer {TOKEN}"})
        assert with_token.status_code == 200
    assert TOKEN.encode() not in log.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "MODULE:APP"),
        (["nothing"], "expected module:name"),
        (["no_such_module:app"], "no_such_module"),
        ([APP.replace(":app", ":none")], "none"),
        ([APP.replace(":app", ":number")], "is none"),
        ([APP.replace(":app", ":broken"), "--factory"], "RuntimeError: a b\\x1b[2J"),
        ([APP.replace(":app", ":number"), "--workers", "2"], "is none"),
        (["no_such_module:app", "--workers", "2"], "no_such_module"),
        ([APP, "--rules", "no_such.toml"], "no_such.toml"),
        ([APP, "--rules", "no_such.toml", "--reload"], "no_such.toml"),
        ([APP, "--rules", "."], "cannot be read"),
        ([APP, "--store", "lmbd:///tmp/x"], "did you mean 'lmdb'"),
        ([APP, "--rules", "broken.toml", "--workers", "2"], "5/minit"),
        ([APP, "--store", "lmdb:///dev/null/x", "--workers", "2"], "/dev/null/x"),
        ([APP, "--dashboard", "/middleware", "--workers", "2"], "16 to 512 characters"),
        ([APP, "--dashboard", "middleware"], '"/slidegate"'),
        ([APP, "--dashboard", "/"], '"/slidegate"'),
        ([APP, "--interface", "wsgi"], "ASGI 3"),
        ([APP, "--port", "many"], "--port"),
        ([APP, "--nothing"], "--nothing"),
    ],
)
def test_bad_input_is_one_sentence_before_any_start(
    arguments: list[str], told: str, rules: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEGATE_DASHBOARD_TOKEN", "short")
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    monkeypatch.chdir(rules.parent)
    Path("broken.toml").write_text('limits = "5/minit"\n', "utf-8")
    more = [] if "--rules" in arguments else ["--rules", str(rules)]
    assert main(["run", *arguments, *more]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert told in said.err


def test_a_port_that_is_taken_is_bad_input(rules: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "slidegate", "run", APP, "--rules", str(rules)]
        ended = subprocess.run(
            [*command, "--port", str(taken.getsockname()[1])],
            env=environment(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 2
    assert b"Traceback" not in ended.stderr


def test_another_server_takes_the_factory_and_the_environment(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIDEGATE_APP", APP.replace(":app", ":make"))
    monkeypatch.setenv("SLIDEGATE_APP_FACTORY", "1")
    monkeypatch.setenv("SLIDEGATE_CONFIG", str(rules))
    for name in ("SLIDEGATE_CONFIG_STORE", "SLIDEGATE_DASHBOARD"):
        monkeypatch.delenv(name, raising=False)
    with TestClient(factory()) as client:
        assert [client.get("/items/1").status_code for _ in range(21)] == [200] * 20 + [429]


@pytest.mark.parametrize(
    ("variables", "told"),
    [({}, "expected module:name"), ({"SLIDEGATE_APP": APP, "SLIDEGATE_CONFIG": "no.toml"}, "no.toml")],
)
def test_variables_that_cannot_work_are_one_sentence(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLIDEGATE_APP", "SLIDEGATE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=told):
        factory()
