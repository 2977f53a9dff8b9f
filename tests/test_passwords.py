"""No message shows a password, in whatever wrong way an address is given; and objects that hide addresses are taken."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis.asyncio
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import AnyUrl, RedisDsn, Secret, SecretBytes, SecretStr, TypeAdapter
from starlette.datastructures import URL
from starlette.datastructures import Secret as StarletteSecret

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule, StoreError
from slidegate.core import Event
from slidegate.core.errors import quoted
from slidegate.core.logs import logger, safe_text
from slidegate.dashboard import Dashboard
from slidegate.ops.cli import run
from slidegate.ops.cli.main import one_line
from slidegate.ops.explain import facts_of
from slidegate.ops.statistics import Statistics
from slidegate.stores.redis import RedisStore

from .asgi import hello, statuses

PASSWORD = "s3cretpw"
ADDRESS = f"redis://:{PASSWORD}@localhost:6379/0"


@dataclass
class Settings:
    redis_url: Any
    redis_password: str = PASSWORD


def objects_of(address: str) -> dict[str, Any]:
    """Return what settings make of an address, and what people wrap it in."""
    return {
        "text": address,
        "bytes": address.encode(),
        "bytearray": bytearray(address.encode()),
        "path": Path(address),
        "list": [address],
        "tuple": (address, address),
        "set": {address},
        "dict": {"url": address},
        "key": {address: "5/minute"},
        "settings": Settings(address),
        "namespace": SimpleNamespace(store=SimpleNamespace(url=address)),
        "split": urlsplit(address),
        "partial": partial(print, address),
        "error": ValueError(address),
        "httpx": httpx.URL(address),
        "starlette": URL(address),
        "AnyUrl": TypeAdapter(AnyUrl).validate_python(address),
        "a list of AnyUrl": [TypeAdapter(AnyUrl).validate_python(address)],
        "SecretStr": SecretStr(address),
        "SecretBytes": SecretBytes(address.encode()),
        "Secret": StarletteSecret(address),
    }


ADDRESSES: dict[str, Any] = {
    **objects_of(ADDRESS),
    **{f"{name}, another scheme": value for name, value in objects_of(ADDRESS.replace("redis", "reddis")).items()},
    "without a scheme": f":{PASSWORD}@localhost:6379",
    "with a user": f"user:{PASSWORD}@localhost:6379",
    "one slash": f"redis:/:{PASSWORD}@localhost:6379",
    "an @ and a / in it": f"redis://:p@{PASSWORD}/x@localhost",
    "a space and a quote in it": f"redis://:a {PASSWORD}' b@localhost",
    "a line break in it": f"reddis://:{PASSWORD}\nb@localhost",
    "in the query": f"reddis://localhost?password={PASSWORD}&db=1",
    "an assignment": f"REDIS_PASSWORD={PASSWORD}",
    "TOML": {"store": {"host": "localhost", "password": PASSWORD}},
    "keywords": {b"password": PASSWORD.encode(), "db": 1},
    "RedisDsn": TypeAdapter(RedisDsn).validate_python(ADDRESS),
    "client": redis.asyncio.Redis.from_url(ADDRESS),
    "pool": redis.asyncio.ConnectionPool.from_url(ADDRESS),
    "blocking client": redis.Redis.from_url(ADDRESS),
}
"""Addresses in a wrong way; test_public_values.py gives them to every public name."""


def shown_by(error: BaseException | None) -> str:
    """Return what a traceback says of an error and of those that led to it, but for the system's about a path."""
    said = ""
    while error is not None and not isinstance(error, OSError):
        said += f"{error} {error!r} {error.args!r} "
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return said


NESTED = st.recursive(
    st.sampled_from([str, str.encode, Path, SecretStr]),
    lambda inner: st.builds(
        lambda wrap, make: lambda text: wrap(make(text)),
        st.sampled_from([lambda one: [one], lambda one: (1, one), lambda one: {"store": one}, Settings]),
        inner,
    ),
    max_leaves=4,
)


TEXTS = st.text("ab:/?#[]@ '\"\\%\n\té", max_size=8)


@given(TEXTS, TEXTS, NESTED, st.integers(0, 100))
def test_no_quoted_value_shows_the_password_of_an_address_in_it(
    before: str, after: str, make: Callable[[str], object], padding: int
) -> None:
    address = f"{'x' * padding}reddis://user:{before}{PASSWORD}{after}@localhost:6379/0"
    value = make(address)
    assert PASSWORD not in quoted(value)
    with pytest.raises(ConfigurationError) as caught:
        Limiter.from_url(value)  # type: ignore[arg-type]
    assert PASSWORD not in shown_by(caught.value)


IN_TOML = ["store = ['{}']", "store = {{ url = '{}' }}", "store = '{}?unknown=1'", "store = {{ env = '{}' }}"]
IN_TOML += ["stor = '{}'", "deadline = '{}'", "on_error = '{}'", "headers = ['{}']", "trusted = ['{}']"]
IN_TOML += ["blocklist = ['{}']", "'{}' = 1", "[[rules]]\npath = '{}'\nlimits = '{}'", "[bans.'{}']\nafter = '{}'"]
IN_TOML += ["[{}]", "limits = '{}'", "store = {}", "store = {{ password = '" + PASSWORD + "' }}"]


@pytest.mark.parametrize("line", IN_TOML)
def test_no_message_about_a_file_shows_the_password_in_it(line: str, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "slidegate.toml"
    for address in (ADDRESS, ADDRESS.replace("redis", "reddis")):
        file.write_text(f"limits = '5/minute'\n{line}\n".replace("{}", address).replace("{{", "{").replace("}}", "}"))
        with pytest.raises(ConfigurationError) as caught:
            RateLimitMiddleware.from_file(print, file)  # type: ignore[arg-type]
        assert PASSWORD not in shown_by(caught.value)
        assert run(["check", str(file)]) != 0
        said = capsys.readouterr()
        assert PASSWORD not in said.out + said.err


IN_COMMANDS = [
    "check {}", "check {}:app", "check --factory {}", "explain {} --store {}", "explain 192.0.2.1 --store {}",
    "explain user:7 --value {}", "bans list {}", "bans list --store {}", "bans {}", "{}", "--{}", "bans list --{}",
    "bans add 192.0.2.1 --store {} --for {}", "limits list --store {}", "limits set api {} --store memory://",
    "simulate {}", "simulate x.log --limit {}", "suggest {}",
]  # fmt: skip


@pytest.mark.parametrize("command", IN_COMMANDS)
def test_no_command_shows_the_password_that_it_is_given_in_a_wrong_place(
    command: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in (ADDRESS.replace("redis", "reddis"), f":{PASSWORD}@localhost:6379"):
        assert run(command.replace("{}", address).split()) != 0
        said = capsys.readouterr()
        assert PASSWORD not in said.out + said.err


WORD = st.from_regex(r"[a-z0-9{}_.@/-]{0,6}(:[a-z0-9{}_.@-]{0,6}){0,2}", fullmatch=True)
TEXT = st.lists(WORD, min_size=1, max_size=4).map(" ".join)


@given(TEXT, TEXT, WORD.filter(lambda word: word[:1].isalnum()))
@example('{"@timestamp":"2025-01-13T09:58:13Z"}', "noc@example.org", "user:ann@example.org")
@example("GET http://example.org/@ann HTTP/1.1", "contact: noc@example.org", "user::42@example.org")
@example('{"url":"http://example.org","mail":"a@b"}', "/{id:integer}/@{user}", "long:1@b")
def test_a_message_keeps_the_words_of_what_is_no_address(log: str, listed: str, key: str) -> None:
    lines = [f"line 1 of 'a.log': it contains no time: {log}", f"a.netset, line 2: {listed}", f"{key} has no ban"]
    for line in [" ".join(line.split()) for line in lines]:
        assume(not re.search(r"(?<!\S)\W*:\S*@|[:/]/[^/\s]*[:@]", line.replace("http://", "")))
        error = ConfigurationError(line)
        assert str(error) == one_line(error) == str(StoreError(line)) == Event("store_failed", line).message == line
        assert safe_text(f"/{key}") == repr(f"/{key}")


async def test_who_has_an_address_as_a_name_is_found_by_it_in_refusals() -> None:
    limiter, name = Limiter(), "user:ann@example.org"
    rules = [Rule("*", "1/hour", key=lambda request: name)]
    app = RateLimitMiddleware(hello, limiter=limiter, rules=rules)
    statistics = Statistics.of(limiter)
    assert await statuses(app, 2) == [200, 429]
    await statistics.publish()
    assert [event.details["key"] for event in (await facts_of(limiter, name)).refusals or ()] == [name]


def test_no_event_and_no_line_of_the_log_shows_the_password_of_an_address(caplog: pytest.LogCaptureFixture) -> None:
    text = f"it cannot connect to {ADDRESS}: why"
    assert PASSWORD not in Event("store_failed", text).message
    assert PASSWORD not in str(StoreError(text))
    logger.error(text)
    assert PASSWORD not in caplog.text
    assert caplog.text.count("redis://***@localhost:6379/0: why") == 1


@given(st.sampled_from(["redis://", "reddis://u", "x=redis://", "'redis:/", "(//", "':", ":", "--:"]), TEXTS, TEXTS)
def test_no_message_shows_the_password_of_an_address_in_it(begins: str, before: str, after: str) -> None:
    before, after = (re.sub(r"[\s/\"]", "", text) for text in (before, after))
    text = f"it cannot connect to {begins}:{before}{PASSWORD}{after}@localhost:6379/0'): why @all"
    assert PASSWORD not in str(StoreError(text))


# -- objects that are taken --------------------------------------------------------------------------------------------


URLS = dict.fromkeys(["text", "starlette", "AnyUrl", "SecretStr", "Secret", "httpx"], "redis://:a%40b@localhost:6380/1")
WITHOUT_HOST = dict.fromkeys(["SecretStr", "Secret"], "memory://?max_keys=5")


@pytest.mark.parametrize(("way", "address"), [*URLS.items(), *WITHOUT_HOST.items()])
def test_addresses_that_are_objects_are_taken(way: str, address: str) -> None:
    store = Limiter.from_url(objects_of(address)[way]).store
    if isinstance(store, RedisStore):
        link: Any = store.parts.open_link()
        given = link._pool.connection_kwargs
        assert (given["host"], given["port"], given["db"], given["password"]) == ("localhost", 6380, 1, "a@b")
    else:
        assert isinstance(store, MemoryStore)


def test_secrets_that_are_objects_are_taken() -> None:
    secret = "0123456789abcdef0123"
    plain = Limiter(secret=secret)
    for hidden in (SecretStr(secret), SecretBytes(secret.encode()), StarletteSecret(secret)):
        assert Limiter(secret=hidden).digest("header", b"k") == plain.digest("header", b"k")
    for hidden in (SecretStr(secret), StarletteSecret(secret)):
        assert Dashboard(Limiter(), token=hidden)._digest == Dashboard(Limiter(), token=secret)._digest
    nested = Secret[RedisDsn](TypeAdapter(RedisDsn).validate_python(ADDRESS))
    assert isinstance(Limiter.from_url(nested).store, RedisStore)
    with pytest.raises(ConfigurationError, match="16 to 64 bytes"):
        Limiter(secret=SecretStr("short"))
