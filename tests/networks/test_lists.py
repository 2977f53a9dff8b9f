"""A list from a file refuses neither nearly everybody nor the machines around the application, unless that is meant.

Crawlers prove themselves by their addresses, in the files that their operators publish.
"""

import ipaddress
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError, Networks, RateLimitMiddleware, client_ip
from slidegate.web.clients import Blocklist

from ..asgi import call, hello
from ..core.bans.test_bans import Network
from ..web.middlewares import FollowedFiles

ANY = {4: ipaddress.ip_network("0.0.0.0/0"), 6: ipaddress.ip_network("2000::/3")}
"""The addresses that clients can have."""
SHARED_DIRECTORY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def pieces(draw: st.DrawFn) -> list[Network]:
    """Draw networks that cover a version in some cut, but for what is left out."""
    kept: list[Any] = [ANY[draw(st.sampled_from([4, 6]))]]
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(kept) - 1))
        if kept[at].prefixlen < 12:
            kept += kept.pop(at).subnets()
    left_out = draw(st.sets(st.sampled_from(kept), max_size=4)) if len(kept) > 1 else set()
    return [network for network in kept if network not in left_out]


def is_too_wide(networks: list[Network], role: str) -> bool:
    for version, whole in ANY.items():
        covered = sum(one.num_addresses for one in networks if one.version == version)
        most = whole.num_addresses * 9 / 10 if role == "blocklist" else 2 ** (whole.max_prefixlen - 4)
        if covered >= most:
            return True
    return False


def text_of(networks: list[Network]) -> str:
    return "".join(f"{one}\n" for one in networks) or "# nothing\n"


@SHARED_DIRECTORY
@given(pieces(), st.sampled_from(["blocklist", "allowlist"]))
@example([ANY[4]], "blocklist")
@example([*ANY[4].subnets()], "blocklist")
@example([ipaddress.ip_network("::/0")], "blocklist")
@example([ANY[6]], "blocklist")
@example([ipaddress.ip_network("224.0.0.0/4")], "allowlist")
@example([ipaddress.ip_network("224.0.0.0/5")], "allowlist")
@example([*ipaddress.ip_network("224.0.0.0/4").subnets(new_prefix=8)], "allowlist")
def test_a_file_that_covers_nearly_everybody_is_taken_on_request_alone(
    files: FollowedFiles, networks: list[Network], role: str
) -> None:
    path = files.write("drop.netset", text_of(networks))
    try:
        RateLimitMiddleware(hello, **{role: Networks.from_file(path)})  # type: ignore[arg-type]
        said = ""
    except ConfigurationError as error:
        said = str(error)
    # ::/0 is wider than what clients can have.
    expected = is_too_wide([ANY[6] if one.prefixlen == 0 and one.version == 6 else one for one in networks], role)
    assert bool(said) is expected, said
    assert not said or " % of " in said
    RateLimitMiddleware(hello, **{role: Networks.from_file(path, wide=True)})  # type: ignore[arg-type]
    RateLimitMiddleware(hello, **{role: Networks(networks)})  # type: ignore[arg-type]
    assert len(Networks.from_file(path)) <= len(networks), "a file that nobody uses yet is not judged"


OWN = [
    *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
    *("::1/128", "fc00::/7", "fe80::/10"),
]
FIREHOL = ["0.0.0.0/8", "1.10.16.0/20", *OWN[:6], "203.0.113.0/24", "224.0.0.0/3"]
"""What FireHOL's level 1 begins and ends with."""
LISTED = st.lists(
    st.sampled_from([*FIREHOL, *OWN[6:], "8.0.0.0/6", "10.1.2.3", "192.168.1.0/25", "198.51.100.0/25", "fe00::/7"]),
    min_size=1,
    unique=True,
)
TRUSTED = st.lists(st.sampled_from(["198.51.100.0/28", "203.0.113.64/26", "10.0.0.0/16"]), unique=True)
PEERS = ["10.1.2.3", "11.0.0.1", "127.0.0.1", "169.254.169.254", "172.18.0.1", "192.168.1.9", "198.51.100.7"]
PEERS += ["198.51.100.100", "203.0.113.7", "203.0.113.70", "0.1.2.3", "1.10.16.1", "230.0.0.1", "::1", "fd00::1"]
PEERS += ["fe80::1", "2001:db8::1"]


def holds(networks: list[str], address: str) -> bool:
    found = ipaddress.ip_address(address)
    return any(found in ipaddress.ip_network(one) for one in networks)


@SHARED_DIRECTORY
@given(LISTED, TRUSTED, st.booleans(), st.booleans())
async def test_a_blocklist_from_a_file_refuses_no_neighbour_and_no_proxy_unless_it_is_asked_to(
    files: FollowedFiles, listed: list[str], trusted: list[str], private: bool, is_reloaded: bool
) -> None:
    path = files.write("level1.netset", "192.0.2.0/24\n" if is_reloaded else "\n".join(listed))
    networks = Networks.from_file(path, private=private)
    app = RateLimitMiddleware(hello, blocklist=networks, client=client_ip(trusted=trusted))
    if is_reloaded:
        files.write("level1.netset", "\n".join(listed))
        await files.visit(app)
    own = [*OWN, *trusted]
    for peer in PEERS:
        expected = holds(listed, peer) and (private or not holds(own, peer))
        assert (await call(app, client=(peer, 1))).status == (403 if expected else 200), peer


@SHARED_DIRECTORY
@given(LISTED, TRUSTED)
@example(["0.0.0.0/5"], ["7.255.255.255/32"])
def test_the_ranges_of_a_list_that_are_published_have_the_addresses_that_it_refuses(
    files: FollowedFiles, listed: list[str], trusted: list[str]
) -> None:
    path = files.write("level1.netset", "\n".join(listed))
    blocklist = Blocklist(Networks.from_file(path), Networks(trusted))
    ranges = [*blocklist.ranges()]
    for network in map(ipaddress.ip_network, [*listed, *OWN, *trusted]):
        first, last = int(network.network_address), int(network.broadcast_address)
        for value in (max(first - 1, 0), first, last, last + 1):
            is_published = any(version == network.version and begin <= value <= end for version, begin, end in ranges)
            assert is_published == (blocklist.find(network.version, value) is not None), value


@pytest.mark.parametrize("role", ["blocklist", "allowlist"])
async def test_networks_in_code_and_those_that_are_allowed_stand_as_written(files: FollowedFiles, role: str) -> None:
    path = files.write("own.netset", "\n".join(OWN))
    networks = Networks(OWN) if role == "blocklist" else Networks.from_file(path)
    app = RateLimitMiddleware(hello, rules=[], limits=None, **{role: networks})  # type: ignore[arg-type]
    for peer in ("10.1.2.3", "127.0.0.1", "fd00::1"):
        answer = await call(app, client=(peer, 1))
        assert answer.status == (403 if role == "blocklist" else 200)
    assert "10.1.2.3" in networks


PUBLISHED = Path(__file__).with_name("crawlers")
GOOGLE, AWS = (PUBLISHED / f"{name}.json" for name in ("googlebot", "aws"))


def test_a_published_file_has_exactly_its_networks(files: FollowedFiles) -> None:
    listed = [ipaddress.ip_network(text) for row in json.loads(GOOGLE.read_text())["prefixes"] for text in row.values()]
    marked = files.write("bots.json", f"\ufeff {GOOGLE.read_text()}")
    assert Networks.from_file(GOOGLE) == Networks.from_file(marked) == Networks(listed)
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


def test_a_file_that_verifies_nearly_everybody_is_an_error(files: FollowedFiles) -> None:
    path = files.write("bots.json", json.dumps({"prefixes": [{"ipv4Prefix": "0.0.0.0/0"}]}))
    with pytest.raises(ConfigurationError, match=r"covers 100 % of the IPv4 addresses, .*wide=True\)"):
        Networks.from_file(path).has_client()
    Networks.from_file(path, wide=True).has_client()
