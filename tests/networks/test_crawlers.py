"""Crawlers prove themselves by their addresses: the files that their operators publish, and a condition of rules."""

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, client_ip
from slidegate.testing import FakeClock

from ..asgi import call, hello, statuses
from ..web.middlewares import FollowedFiles

PUBLISHED = Path(__file__).with_name("crawlers")
GOOGLE, AWS = (PUBLISHED / f"{name}.json" for name in ("googlebot", "aws"))
FAKE = "203.0.113.9"
NAMED = {"User-Agent": "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"}


def test_a_published_file_has_exactly_its_networks() -> None:
    listed = [ipaddress.ip_network(text) for row in json.loads(GOOGLE.read_text())["prefixes"] for text in row.values()]
    assert Networks.from_file(GOOGLE) == Networks(listed)
    assert len(listed) > 10


def test_of_a_file_with_services_one_is_taken() -> None:
    assert Networks.from_file(AWS, service="CLOUDFRONT") == Networks(["198.51.100.0/24", "2001:db8:c::/48"])
    assert Networks.from_file(AWS, service="EC2") == Networks(["192.0.2.0/27", "2001:db8:e::/48"])


def row(**fields: Any) -> str:
    return json.dumps({"prefixes": [{"ipv4Prefix": "192.0.2.0/24"}, fields]})


@pytest.mark.parametrize(
    ("content", "service", "problem"),
    [
        ("{", None, "is not valid JSON"),
        ("[" * 100_000, None, "line 1: network: "),
        ('{"prefixes": ' + "[" * 100_000, None, "is not valid JSON"),
        ('{"prefixes": []}', None, "has no networks; expected"),
        ('{"prefixes": {"a": 1}}', None, "prefixes: expected a list"),
        ('{"prefixes": [3]}', None, r"prefixes\[0\]: expected an object"),
        (row(ipv4prefix="192.0.2.0/24"), None, r"prefixes\[1\]: expected one of ipv4Prefix"),
        (row(ipv4Prefix="192.0.2.1/24"), None, r"prefixes\[1\].ipv4Prefix: network: .*192\.0\.2\.0/24"),
        (AWS.read_text(), None, "anybody can rent .*service='AMAZON'.*: AMAZON, CLOUDFRONT, EC2"),
        (AWS.read_text(), "ec2", "no network is of the service 'ec2'"),
        ("192.0.2.0/24", "EC2", "names no services; leave service out"),
    ],
)
def test_a_file_without_usable_networks_is_an_error(
    files: FollowedFiles, content: str, service: Any, problem: str
) -> None:
    path = files.write("bots.json", content)
    with pytest.raises(ConfigurationError, match=problem) as raised:
        Networks.from_file(path, service=service)
    assert str(path) in str(raised.value)


def guarded(networks: Networks, **options: Any) -> RateLimitMiddleware:
    """Return a site where verified crawlers have a limit of their own; a client that only sends the name is blocked."""
    rules = [
        Rule("*", "4/minute", when=networks.has_client(), final=True, name="google"),
        Rule("*", block=True, when=lambda request: "Googlebot" in request.headers.get("user-agent", ""), name="forged"),
        Rule("*", "2/minute", name="others"),
    ]
    return RateLimitMiddleware(hello, rules=rules, limiter=Limiter(MemoryStore(clock=FakeClock())), **options)


async def test_a_verified_crawler_has_a_limit_of_its_own_and_a_forged_name_is_blocked() -> None:
    app = guarded(Networks.from_file(GOOGLE))
    for address in ("66.249.64.5", "2001:4860:4801:10::7"):
        assert await statuses(app, 5, client=(address, 1), headers=NAMED) == [200] * 4 + [429]
    assert await statuses(app, 1, client=(FAKE, 1), headers=NAMED) == [403]
    assert await statuses(app, 3, client=("192.0.2.7", 1)) == [200, 200, 429]


@pytest.mark.parametrize("prefix", [32, 48, 56, 64, 128])
async def test_the_whole_address_decides_whatever_the_prefix_of_its_key_is(prefix: int) -> None:
    networks = Networks(["2001:db8:1:2::80/121"])
    app = guarded(networks, client=client_ip(trusted=["192.0.2.0/24"], ipv6_prefix=prefix))
    proxied: dict[str, Any] = {"client": ("192.0.2.1", 1)}
    for address, expected in [("2001:db8:1:2::81", 200), ("2001:db8:1:2::1", 403), ("not an address", 403)]:
        answer = await call(app, headers={**NAMED, "X-Forwarded-For": address}, **proxied)
        assert answer.status == expected, address


async def test_without_a_peer_nobody_is_verified() -> None:
    assert await statuses(guarded(Networks(["0.0.0.0/0", "::/0"])), 1, client=None, headers=NAMED) == [403]


async def test_the_condition_follows_its_file(files: FollowedFiles) -> None:
    path = files.write("bots.json", "\ufeff " + json.dumps({"prefixes": [{"ipv4Prefix": "192.0.2.0/24"}]}))
    app = guarded(Networks.from_file(path))
    assert (await call(app, headers=NAMED)).status == 403
    files.write("bots.json", json.dumps({"prefixes": [{"ipv4Prefix": "203.0.113.0/24"}]}))
    await files.visit(app)
    assert (await call(app, headers=NAMED)).status == 200


def test_a_file_that_verifies_nearly_everybody_is_an_error(files: FollowedFiles) -> None:
    path = files.write("bots.json", json.dumps({"prefixes": [{"ipv4Prefix": "0.0.0.0/0"}]}))
    with pytest.raises(ConfigurationError, match=r"covers 100 % of the IPv4 addresses, .*wide=True\)"):
        Networks.from_file(path).has_client()
    Networks.from_file(path, wide=True).has_client()
