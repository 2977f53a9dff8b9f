"""`slidegate check`: findings in files and applications, output formats and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slidegate.cli import check, main

from ..redis_servers import needs_redis
from . import sick_apps

ROOT = Path(__file__).resolve().parents[2]
APPS = "tests.cli.sick_apps"


def found(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    """Return the findings of a check, and compare its exit code with them."""
    code = main(["check", "--format", "json", *arguments])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == (1 if findings else 0)
    return findings


def test_a_healthy_application_is_clean_and_was_started_and_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    sick_apps.events.clear()
    assert found(capsys, f"{APPS}:healthy") == []
    assert sick_apps.events == ["start", "end"]
    assert main(["check", f"{APPS}:healthy"]) == 0
    assert capsys.readouterr().out == "Nothing was found.\n"


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("bare", {("SG201", "no RateLimitMiddleware")}),
        ("mounting", set()),
        ("no_lifespan", {("SG201", "no RateLimitMiddleware")}),
        ("half", {("SG124", "is for PATCH, but the path '/one' has only GET /one")}),
    ],
)
def test_an_application_with_mistakes_is_told_of_each(
    app: str, expected: set[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    findings = found(capsys, f"{APPS}:{app}")
    assert len(findings) == len(expected)
    for code, told in expected:
        assert [finding for finding in findings if finding["code"] == code and told in finding["message"]], told


# A Unix socket that does not exist, because another program could listen on a free port.
@pytest.mark.parametrize(
    "made",
    [
        "lmdb:///proc/nope",
        "lmdb://{there}/slidegate.toml/nope",
        pytest.param("unix://{there}/none.sock", marks=needs_redis),
    ],
)
def test_a_store_that_cannot_be_made_or_does_not_answer_is_a_finding_that_names_it(
    made: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "slidegate.toml", made.format(there=tmp_path)
    file.write_text(f'store = "{store}"\nrules = [{{ path = "*", limits = "5/m" }}]\n', "utf-8")
    (finding,) = found(capsys, str(file))
    assert finding["code"] == "SG202"
    assert store.partition("://")[2] in finding["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slidegate.toml"]


@pytest.mark.parametrize("named", ["file", "SLIDEGATE_STORE", "ELSEWHERE"])
def test_a_store_that_is_not_there_yet_is_not_made_wherever_it_is_named(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, store = tmp_path / "slidegate.toml", tmp_path / "store"
    lines = {
        "file": f'store = "lmdb://{store}"\n',
        "SLIDEGATE_STORE": "",
        "ELSEWHERE": 'store = { env = "ELSEWHERE" }\n',
    }
    file.write_text(f'{lines[named]}limits = "5/m"\n', "utf-8")
    monkeypatch.setenv(named, f"lmdb://{store}")
    assert main(["check", str(file)]) == 0
    assert "does not exist yet" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["slidegate.toml"]
    store.mkdir()
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("address", ["lmdb://./counts", "lmdb:counts", "lmdb:///nowhere/counts?max_kyes=5"])
def test_an_address_that_cannot_work_is_an_error_also_where_nothing_is_there_yet(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slidegate.toml"
    file.write_text(f'store = "{address}"\nrules = [{{ path = "*", limits = "5/m" }}]\n', "utf-8")
    assert main(["check", str(file)]) == 1
    told = capsys.readouterr().err
    assert str(file) in told
    assert "store address" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([f"{APPS}:broken"], "5/minit"),
        ([f"{APPS}:failing"], "startup failed: RuntimeError: no database"),
        ([f"{APPS}:events"], "is not an ASGI application"),
        ([f"{APPS}:none"], "none"),
        (["no_such_module:app"], "no_such_module"),
        (["no_such.toml"], "no_such.toml: cannot be read: No such file"),
        ([str(ROOT / "LICENSE")], "line 1"),
        ([f"{APPS}:raising", "--factory"], "RuntimeError: a b\\x1b[2J"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert told in said.err


@pytest.mark.parametrize(
    ("target", "written"),
    [("saas", "saas:app"), ("shop/api.py", "shop.api:app"), ("shop.api", "shop.api:app")],
)
def test_the_name_of_a_module_alone_is_wrong_usage_that_says_what_to_write(
    target: str, written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saas.py").write_text("app = None\n")
    (tmp_path / "saas").mkdir()  # a package of that name, not a configuration file
    monkeypatch.chdir(tmp_path)
    assert main(["check", target]) == 2
    assert f"did you mean {written!r}" in capsys.readouterr().err


def test_a_start_that_takes_for_ever_is_given_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "START_TIMEOUT_S", 0.01)
    assert main(["check", f"{APPS}:stuck"]) == 1
    assert "startup took longer" in capsys.readouterr().err
