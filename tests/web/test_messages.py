"""What cannot work is refused where it is written: messages.txt has each message whole, as its user reads it."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import Mount, Route

import slidegate
from slidegate import BanPolicy, ConfigurationError, MessageLimits, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import Store
from slidegate.httpx import LimitedTransport

from ..asgi import call, hello, page, scope_of
from ..remote_stores import RemoteStore
from ..test_messages import message_of
from .middlewares import FORMS
from .network_files import operators

MESSAGES = Path(__file__).with_name("messages.txt")
FILE_MESSAGES = Path(__file__).with_name("file_messages.txt")
TABLE = '[[rules]]\npath = "/a"\nlimits = "5/minute"\n'
TABLES = {"RULE": TABLE, "NAMED": f'{TABLE}name = "x"\n', "BANS": "[bans.s]\n"}


def mistaken_files() -> list[Any]:
    """Return the contents of the files that are refused, as text or bytes."""
    lines = FILE_MESSAGES.read_text("utf-8").splitlines()
    return [eval(line.removeprefix("toml "), dict(TABLES)) for line in lines if line.startswith("toml ")]


def middleware(**options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, **options)


def from_file(path: Any) -> object:
    return RateLimitMiddleware.from_file(hello, path)


def bans(**options: Any) -> RateLimitMiddleware:
    return middleware(bans=BanPolicy(**options))


async def never(status: int) -> bool:
    return False


async def rows() -> Any:
    yield "a"


class Application:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Windows(RemoteStore):
    """A store that counts no permits."""

    permits_held = Store.permits_held  # type: ignore[assignment]


OWN = [call, middleware, from_file, bans, never, rows, page, Application, Windows, Starlette, FastAPI, LimitedTransport]
OWN += [GZipMiddleware, Middleware, Mount, Route]
NAMES = {
    **{name: getattr(slidegate, name) for name in slidegate.__all__},
    **{known.__name__: known for known in OWN},
    "FORMS": FORMS,
    "REQUEST": Request(scope_of()),
    "run": asyncio.run,
    "RULE": Rule("*", "5/minute"),
    "TOOLS": slidegate.mcp_tool("search", "export", validated=True),
}


def test_each_value_that_cannot_work_is_refused_with_what_would(
    tmp_path: Path, texts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    operators(Path())
    names = {**NAMES, "ASN": slidegate.network("asn.mmdb")}
    texts(MESSAGES, ">>> ", lambda expression: message_of(expression, names))


def test_a_mistake_in_a_file_is_named_with_what_was_expected(tmp_path: Path, texts: Callable[..., None]) -> None:
    file = tmp_path / "slidegate.toml"
    operators(tmp_path)
    (tmp_path / "blocked.netset").write_text("192.0.2.0/24\n", "utf-8")

    def read(written: str) -> str:
        text = eval(written, dict(TABLES))
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigurationError) as caught:
            from_file(file)
        message = str(caught.value)
        assert message.startswith(str(file))
        assert message.count(str(file)) == 1, "a place is said once"
        assert "\n" not in message
        return re.sub(f"{re.escape(str(tmp_path))}/", "", message)

    texts(FILE_MESSAGES, "toml ", read)


async def plenty(first: object, second: object = None, *rest: object, more: object = None) -> None:
    """Take one or more."""


class Two:
    def __call__(self, first: object, second: object = None) -> None:
        """Take one or two."""


FITTING = [lambda a: None, partial(lambda a, b: None, b=1), plenty, Two(), partial(plenty, more=1), lambda *a: a, print]
OTHERS = [lambda: None, lambda a, b: None, lambda a, *, b: None, partial(lambda a, b, c: None, 1), lambda a, b, c: None]


@pytest.mark.parametrize("make", [partial(Rule, "/a"), RateLimit], ids=["rule", "endpoint"])
@pytest.mark.parametrize("option", ["limits", "key", "cost", "when"])
def test_a_function_of_other_parameters_is_refused_at_once(option: str, make: Callable[..., object]) -> None:
    for function in FITTING:
        make(**{"limits": "5/minute", option: function})
    for function in OTHERS:
        with pytest.raises(ConfigurationError, match=f"^{option}: expected a function of .* which takes "):
            make(**{"limits": "5/minute", option: function})


def test_limits_are_shown_as_they_count() -> None:
    assert repr(MessageLimits("10/second; 100/minute")) == "<MessageLimits 10/1s; 100/1m>"
    assert str(RateLimit(limits="5/minute")) == str(RateLimit("5/minute")) == "<RateLimit 5/1m>"
