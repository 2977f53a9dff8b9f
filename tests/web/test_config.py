"""The configuration file: what can be written, what each mistake is answered with, and what goes before what."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware
from slidegate.core import Concurrency
from slidegate.web.reload import FileOptions, ReloadingMiddleware

from ..asgi import hello, statuses
from .network_files import operators

EVERYTHING = Path(__file__).resolve().parents[2] / "examples" / "slidegate.toml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "slidegate.toml"


def middleware(file: Path, text: str, **code: Any) -> RateLimitMiddleware:
    """Return the middleware that a file makes."""
    file.write_text(text, "utf-8")
    return RateLimitMiddleware.from_file(hello, file, **code).app


def test_everything_can_be_written_in_the_file() -> None:
    made = RateLimitMiddleware.from_file(hello, EVERYTHING).app
    health, login, api, export, closed, render, tools, calls, service, shadow, v6, query = made.rules
    assert (closed.blocks, closed.status) == (True, 404)
    assert (health.paths, health.exempt, health.limits) == (("/health",), True, ())
    assert [str(limit) for limit in login.limits] == ["5/1m", "500/month from 15 in Europe/Berlin"]
    assert (login.methods, login.connection, login.count_denied) == ({"POST"}, "http", True)
    assert login.count_if is not None
    assert [login.count_if(status) for status in (200, 401, 403)] == [False, True, True]
    assert api.name == "api"
    assert api.key.identity == "client/24/56+header:x-tenant+path:tenant"  # type: ignore[union-attr]
    assert (render.limits, render.concurrency) == ((), Concurrency(4))
    assert tools.key.identity == "user+mcp_tool:export,search"  # type: ignore[union-attr]
    assert repr(calls.when) == "<condition mcp_tool:export,search ['export']>"
    assert (export.cost, export.wait_us, export.wait_max) == (5, 200_000, 4)
    assert export.key.identity == "cookie:device"  # type: ignore[union-attr]
    assert (service.name, service.key.identity) == ("service", "everyone")  # type: ignore[union-attr]
    assert (shadow.action, shadow.key.identity) == ("shadow", "user")  # type: ignore[union-attr]
    assert (v6.final, v6.key.identity) == (True, "client/32/48")  # type: ignore[union-attr]
    assert query.key.identity == "query:tenant"  # type: ignore[union-attr]


def test_a_ban_policy_is_the_same_from_a_file_and_in_code() -> None:
    made = {policy.name: policy for policy in RateLimitMiddleware.from_file(hello, EVERYTHING).app.policies}
    assert list(made) == ["scanning", "accounts"]
    wanted = BanPolicy(
        "20/10m", "1h", factor=4, longest="7d", forgive="24h", name="scanning", status=429, ban_private=True,
        signals={"refused": 1, 401: 1, "4xx": 1, "/.env": "ban"},
    )  # fmt: skip
    shown = [{**vars(policy), "strikes": repr(policy.strikes)} for policy in (made["scanning"], wanted)]
    assert shown[0] == shown[1]
    accounts = made["accounts"]
    assert (accounts.shadow, str(accounts.after), accounts.status) == (True, "100/1h", 403)
    assert accounts.key.identity == "user"


def test_a_file_of_networks_is_opened_once_for_bans_keys_and_conditions(file: Path) -> None:
    operators(file.parent)
    rules = "".join(
        f'[[rules]]\npath = "/{number}"\nlimits = "9/hour"\nkey = {{ network = "asn.mmdb" }}\n'
        'when = { network = "asn.mmdb", is_in = [64500] }\n'
        for number in range(2)
    )
    app = middleware(file, f'networks = "asn.mmdb"\n{rules}')
    files: list[Any] = [*app.limiter.engine.networks, *(rule.key.file for rule in app.rules)]  # type: ignore[union-attr]
    assert [file is files[0] for file in files] == [True] * 3


# -- what goes before what ---------------------------------------------------------------------------------------------


def address_of(middleware: RateLimitMiddleware) -> int:
    """Return what tells the stores of these tests apart."""
    store = middleware.limiter.store
    assert isinstance(store, MemoryStore)
    return store.max_keys


def test_code_goes_before_the_file_and_the_file_before_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = 'limits = "1/hour"\n'
    written = f'store = "memory://?max_keys=22"\n{plain}'
    monkeypatch.setenv("SLIDEGATE_STORE", "memory://?max_keys=11")
    assert address_of(middleware(file, plain)) == 11
    assert address_of(middleware(file, written)) == address_of(middleware(file, written, limiter=None)) == 22
    assert address_of(middleware(file, written, store="memory://?max_keys=44")) == 44
    mine = Limiter(MemoryStore(max_keys=33))
    assert middleware(file, plain, limiter=mine).limiter is mine


async def test_a_function_in_code_answers_beside_the_file(file: Path) -> None:
    answer = PlainTextResponse("slower", 420)
    app = middleware(file, 'limits = "1/hour"', on_refused=lambda request, decision: answer)
    assert await statuses(app, 2) == [200, 420]
    with pytest.raises(ConfigurationError, match=r"^on_refused: expected a function of request and decision"):
        middleware(file, 'limits = "1/hour"', on_refused=5)
    with pytest.raises(ConfigurationError, match=r"^from_file: write limits into the file, not beside it"):
        middleware(file, 'limits = "1/hour"', limits="2/hour")


async def test_the_secret_for_digests_comes_from_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'limits = "9/hour"\n'
    monkeypatch.setenv("SLIDEGATE_SECRET", "s" * 32)
    digests = {middleware(file, text).limiter.digest("header:x-api-key", b"k") for _ in range(2)}
    assert digests == {Limiter(secret="s" * 32).digest("header:x-api-key", b"k")}


def test_type_checkers_know_every_option_beside_the_file() -> None:
    options = inspect.signature(ReloadingMiddleware).parameters.keys() - {"app", "path", "others"}
    assert FileOptions.__annotations__.keys() == options
