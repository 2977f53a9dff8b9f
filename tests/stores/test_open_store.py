"""Stores by address: what is read of it and refused, and that no message shows a password."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import RedisCluster

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.stores.open_store import open_store
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.clients import OPTIONS, open_client

from ..test_messages import message_of

SECRET = "hunter2"
SETTINGS = ("path", "db", "ssl", "username", "password", "ssl_ca_certs", "ssl_check_hostname", "ssl_cert_reqs")


LOGIN, CHECKS = "username='u' password='p'", "ssl_check_hostname=True ssl_cert_reqs='required'"
ADDRESSES = {
    "REDIS://h:7000/3": "h:7000 db=3",
    "redis://:p%40%2F@h": "h:6379 password='p@/'",
    "rediss://h": f"h:6379 ssl=True {CHECKS}",
    "rediss://h?ssl_ca_certs=/ca.pem": f"h:6379 ssl=True ssl_ca_certs='/ca.pem' {CHECKS}",
    "rediss://h?ssl_check_hostname=False": "h:6379 ssl=True ssl_check_hostname=False ssl_cert_reqs='required'",
    "rediss://h?ssl_cert_reqs=CERT_NONE": "h:6379 ssl=True ssl_check_hostname=False ssl_cert_reqs='none'",
    "unix:///run/a%20b?db=2": "path='/run/a b' db=2",
    "redis+cluster://h1,[::1]/0": "h1:6379 ::1:6379",
    "redis+sentinel://h1,h2:7000/main": "h1:26379 h2:7000 main",
    "redis+sentinel://u:p@h/main/4": f"h:26379 main db=4 {LOGIN}",
    "redis+sentinel://u:p@h/main?sentinel_username=s&sentinel_password=a%2Bb%26c": (
        f"h:26379 main sentinel_username='s' sentinel_password='a+b&c' {LOGIN}"
    ),
}
"""Addresses, and what their client gets."""


def settings_of(url: str) -> str:
    """Return what the client for an address got: hosts, the service, and some of its settings."""
    client: Any
    client, _ = open_client(url, {})
    if isinstance(client, RedisCluster):
        found, words = client.connection_kwargs, [node.name for node in client.nodes_manager.startup_nodes.values()]
    else:
        pool: Any = client.connection_pool
        sentinels = pool.sentinel_manager.sentinels if hasattr(pool, "service_name") else []
        ends = [one.connection_pool.connection_kwargs for one in sentinels] or [pool.connection_kwargs]
        words = [f"{one['host']}:{one['port']}" for one in ends if "host" in one]
        words += [pool.service_name] if sentinels else []
        found = {"ssl": "SSL" in pool.connection_class.__name__, **pool.connection_kwargs}
        words += [f"sentinel_{name}={ends[0][name]!r}" for name in SETTINGS[3:5] if sentinels and ends[0].get(name)]
    words += [f"{name}={found[name]!r}" for name in SETTINGS if found.get(name) is not None]
    return " ".join(word for word in words if word not in ("db=0", "ssl=False"))


def test_addresses_are_read() -> None:
    assert {url: settings_of(url) for url in ADDRESSES} == ADDRESSES


def refusal_of(expression: str) -> str:
    """Return the message, for `<a | b>` that of both; it shows no password, nor does an error behind it."""
    names: dict[str, Any] = {known.__name__: known for known in (Limiter, MemoryStore, RedisStore)}
    names["LmdbStore"] = lambda *given, **options: open_store("lmdb:///missing")  # says what is missing
    with suppress(ImportError):
        from slidegate.stores.lmdb import LmdbStore  # Windows has none

        names["LmdbStore"] = LmdbStore
    head, _, rest = expression.partition("<")
    several, _, tail = rest.partition(">")
    messages = set[str]()
    for one in several.split(" | "):
        messages.add(message_of(f"{head}{one}{tail}", names))
        with pytest.raises(ConfigurationError) as caught:
            eval(f"{head}{one}{tail}", dict(names))
        assert SECRET not in str(caught.value)
        assert SECRET not in one or caught.value.__cause__ is caught.value.__context__ is None
    (message,) = messages
    return message


def test_options_and_addresses_that_cannot_work_are_refused_with_what_would(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("messages.txt"), ">>> ", refusal_of)


@given(st.sampled_from([*OPTIONS]), st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
def test_a_password_is_never_shown_wherever_it_was_put(scheme: str, before: str, between: str, after: str) -> None:
    url = f"{scheme}://{before}{SECRET}{between}@h{after}"
    shown = ""
    try:
        open_client(url, {})
    except ConfigurationError as error:
        # What stands where options do is named, so that it can be put right.
        shown = str(error).partition("unknown option")[0]
    assert SECRET not in shown


@pytest.mark.parametrize("option", sorted({*inspect.signature(RedisStore).parameters} - {"client", "clock", "create"}))
def test_every_option_of_the_store_can_stand_in_its_address(option: str) -> None:
    with pytest.raises(ConfigurationError, match=option) as caught:
        Limiter.from_url(f"redis://h?{option}={{}}")
    assert "unknown option" not in str(caught.value)


BLANKS = st.text(st.sampled_from(" \t\r\n\v\f\u00a0\u2028"), max_size=3)


@given(st.sampled_from(["memory://", "lmdb://{}", "redis://:p@h", "rediss+cluster://h", "unix:///s"]), st.data())
async def test_white_space_around_an_address_is_dropped_and_inside_refused(url: str, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        plain = url.format(folder)
        limiters = [Limiter.from_url(plain), Limiter.from_url(f"{data.draw(BLANKS)}{plain}{data.draw(BLANKS)}")]
        assert repr(limiters[0].store) == repr(limiters[1].store)
        for limiter in limiters:
            await limiter.close()
    at, blank = data.draw(st.integers(1, len(plain) - 1)), data.draw(st.sampled_from("\n\r\t\x00\x7f"))
    with pytest.raises(ConfigurationError) as caught:
        open_store(f"{plain[:at]}{blank}{plain[at:]}")
    assert f"it has {blank!r} after {at} characters" in str(caught.value)
