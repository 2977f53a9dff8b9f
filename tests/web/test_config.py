"""The configuration file: what can be written, what each mistake is answered with, and what goes before what."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.web.reload import FileOptions, ReloadingMiddleware

from ..asgi import hello, statuses
from .network_files import operators

EVERYTHING = Path(__file__).resolve().parents[2] / "examples" / "slidegate.toml"
EVERYTHING_MADE = Path(__file__).with_name("everything.txt")
"""The rules and policies that it makes."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "slidegate.toml"


def middleware(file: Path, text: str, **code: Any) -> RateLimitMiddleware:
    """Return the middleware that a file makes."""
    file.write_text(text, "utf-8")
    return RateLimitMiddleware.from_file(hello, file, **code).app


def test_everything_can_be_written_in_the_file(texts: Callable[..., None]) -> None:
    app = RateLimitMiddleware.from_file(hello, EVERYTHING).app
    made: dict[str, Any] = {repr(one): one for one in (*app.rules, *app.policies)}
    usual = {type(one): vars(one) for one in (Rule("/", "1/s"), BanPolicy())}

    def described(name: str) -> str:
        """Return the attributes that are not as by default; those of a method are its object's."""
        if name == "file":
            return "\n".join(made)
        found = {at: getattr(value, "__self__", value) for at, value in vars(made[name]).items()}
        left_out = ("label", "rule_paths", "strikes")  # follow from the others
        own = [at for at, value in found.items() if at not in left_out and value != usual[type(made[name])][at]]
        return "\n".join(f"{at}: {found[at]!r}" for at in own)

    texts(EVERYTHING_MADE, "> ", described)


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
