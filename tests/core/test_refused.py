"""What cannot work is refused where it is written: the message has the value, what was expected, and what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from slidegate import BanPolicy, ConfigurationError, Limit, Networks, Quota, parse_limits
from slidegate.core import Concurrency, HotKeys, MetricWindow, RollingTotals
from slidegate.core.addresses import parse_address, parse_network
from slidegate.core.bans.ban import ban_key, clean_reason

LONG = "9" * 5_000
REFUSED: dict[Callable[..., object], list[tuple[object, str]]] = {
    parse_limits: [
        ("", "'' at column 1"),
        ("0/m", "amount: expected a whole number from 1 to 2147483647"),
        ("10/0s", "window: must be greater than zero"),
        ("10/minutez", "did you mean 'minute'?"),
        ("10/999us", "window: expected 1ms to 400d"),
        ("\uff11\uff10/m", "'\uff11\uff10/m' at column 1"),
        ("10/m; 5/s junk", "'5/s junk' at column 7 of '10/m; 5/s junk'"),
        ("a:b: 5/m", "'a:b: 5/m' at column 1"),
        ("caf\u00e9: 5/m", "'\u00e9' in 'caf\u00e9' is not allowed"),
        ("5/m @0", "resolution: expected a whole number from 1 to 3600"),
        ("5/1ms @101", "use at most 100"),
        ("1/month", "a month has no fixed length; write \"30 days\", not 'month'"),
        ("10/second, 100/minute", "several are separated by \";\": write '10/second; 100/minute'"),
        ("100/10", 'which unit? write "100/10s" if seconds are meant'),
        ("5/" + " " * 80_000, "expected at most 4096 characters"),
        ("5/m; 10/60s", "'5/1m' and '10/1m' have the same window"),
        ([Limit(5, "1m", name="a"), "b: 6/m"], "'a: 5/1m' and 'b: 6/1m' have the same window"),
        (["5/minute", Concurrency(4)], "write concurrency=4"),
        ([], "at least one"),
        ([5], "not 5"),
        (None, "not None"),
    ],
    Limit: [
        ({"amount": 0}, "amount: expected a whole number from 1 to 2147483647"),
        ({"amount": 2**31}, "not 2147483648"),
        ({"amount": 10**6_000}, "not <int that cannot be written: ValueError>"),
        ({"window": 0}, "window: must be greater than zero"),
        ({"window": float("inf")}, "window: expected a duration"),
        ({"window": 0.0009}, "window: expected 1ms to 400d"),
        ({"window": 400 * 86_400 + 1}, "window: expected 1ms to 400d"),
        ({"window": 1e300}, "window: expected at most 292,000 years"),
        ({"window": timedelta(microseconds=2**63)}, "window: expected at most 292,000 years"),
        ({"resolution": 0}, "resolution: expected a whole number from 1 to 3600"),
        ({"resolution": 1.5}, "not 1.5"),
        ({"window": 0.001, "resolution": 101}, "use at most 100"),
        ({"name": ""}, "limit name: expected 1 to 64 characters"),
        ({"name": "a:b"}, "':' in 'a:b' is not allowed"),
        ({"name": "a\nb"}, r"'\n' in 'a\nb' is not allowed"),
        ({"name": " a"}, "starts or ends with a space; write 'a'"),
    ],
    Quota: [
        ({"text": "10000"}, "expected AMOUNT/PERIOD, for example \"10000/month\", not '10000'"),
        ({"text": "5/hour"}, 'for other spans write a limit, for example "100/hour"'),
        ({"text": "0/day"}, "quota: expected a whole number from 1"),
        ({"name": "a:b"}, "name: "),
        ({"starts": 6}, 'starts: a day starts with a time of day, for example "06:00", not 6'),
        ({"text": "5/week", "starts": "someday"}, "a day of the week, for example \"monday\", not 'someday'"),
        ({"text": "5/month", "starts": 32}, "a day of the month from 1 to 31, for example 15, not 32"),
        ({"text": "5/year", "starts": "02-30"}, 'a month and a day, for example "04-01"'),
        ({"zone": 1}, "zone: expected the name of a time zone"),
        ({"zone": "Europe/Berlinn"}, "did you mean 'Europe/Berlin'"),
        ({"zone": "../../etc/passwd"}, "zone: expected the name of a time zone"),
    ],
    Concurrency: [
        (0, "concurrency: expected a whole number from 1 to 2147483647, for example"),
        (True, "not True"),
        (4.0, "not 4.0"),
        ("4/minute", "it has no window"),
        ("\u0664", "concurrency: expected a whole number"),
    ],
    Networks: [
        (["10.0.0.1/8"], "did you mean 10.0.0.0/8? (strict=False clears them)"),
        (["2001:db8::1/64"], "did you mean 2001:db8::/64?"),
        (["::ffff:10.0.0.1/104"], "did you mean 10.0.0.0/8?"),
        (["192.0.2.0/24", "10.0.0.0/08"], "'10.0.0.0/08' needs a prefix length from 0 to 32, for example 10.0.0.0/32"),
        (["10.0.0.0/0.255.255.255"], "prefix length from 0 to 32"),
        ([f"10.0.0.0/{LONG}"], "prefix length from 0 to 32"),
        (["2001:db8::/129"], "prefix length from 0 to 128, for example 2001:db8::/128"),
        (["::ffff:0:0/95"], "contains all IPv4 addresses; write 0.0.0.0/0 or ::/0 if you mean that"),
        (["010.0.0.0/8"], "is not an address or network"),
        (["example.org"], "is not an address or network"),
        ([None], "is not an address or network"),
        ("192.0.2.0/24", 'networks: expected a list, for example ["192.0.2.0/24"], not'),
        (None, "networks: expected a list"),
    ],
    parse_address: [(5, 'address: expected text such as "192.0.2.7", not 5')],
    parse_network: [(5, 'network: expected text such as "192.0.2.0/24", not 5')],
    BanPolicy: [
        ({"after": "twenty"}, "after: limits: 'twenty'"),
        ({"after": "20/10m; 5/1h"}, "after: expected one"),
        ({"duration": "0s"}, "duration: must be greater than zero"),
        ({"duration": "999ms"}, 'duration: expected 1s to 400d, for example "1h"'),
        ({"duration": "8d", "longest": "7d"}, "longest: '7d' must not be shorter than duration, '8d'"),
        ({"factor": 1.05}, "factor: expected 1, or 1.1 to 1000"),
        ({"forgive": 0.5}, "forgive: expected 1s to 400d"),
        ({"signals": ["refused"]}, "signals: expected a mapping"),
        ({"signals": {"refuse": 1}}, "did you mean 'refused'?"),
        ({"signals": {99: 1}}, "signals: expected a status from 100 to 599"),
        ({"signals": {"\u0664\u0660\u0664": 1}}, "expected a status"),
        ({"signals": {"refused": 0}}, "signals: weight of 'refused'"),
        ({"name": "a:b"}, "ban policy name: ':'"),
        ({"shadow": "yes"}, "shadow: expected True or False, not 'yes'"),
        ({"action": "shadow"}, "BanPolicy: unknown option 'action'"),
        ({"status": 404}, "status: expected 403 or 429"),
    ],
    ban_key: [
        ("010.8.8.8", "ban: '010.8.8.8' is not an address or network; write for example \"192.0.2.7\", "),
        ("0x7f000001", '"key:0x7f000001" if it is a key'),
        ("192.0.2.7\n", "is not an address or network"),
        ("1" * 64, "is not an address or network"),
        ("2001:db8::/129", "is not an address or network"),
        ("0.0.0.0/0", "contains every address; to take the service offline"),
        ("::ffff:0:0/96", "contains every address"),
        ("", "ban: expected an address, a network or a key, for example"),
        (b"192.0.2.7", "ban: expected an address, a network or a key"),
    ],
    clean_reason: [(5, 'reason: expected text, for example "scanner", not 5')],
    MetricWindow: [
        ({"slices": 0}, "slices: expected a whole number from 1 to 3600"),
        ({"slices": 3_601}, "not 3601"),
        ({"slice_us": 0.5}, "slice_us: expected a whole number"),
        ({"max_names": -1}, "not -1"),
        ({"max_names": 1_001}, "not 1001"),
    ],
    RollingTotals: [
        ({"slice_us": 0}, "slice_us: expected a whole number"),
        ({"windows_us": [14, 20]}, "a window of 20 us is not a whole number of slices of 7 us; "),
        ({"windows_us": [6]}, "a window of 6 us is not a whole number of slices of 7 us"),
        ({"windows_us": [0]}, "windows_us: expected a whole number"),
        ({"windows_us": [14.0]}, "not 14.0"),
        ({"windows_us": []}, "windows_us: expected at least one"),
        ({"windows_us": 14}, "windows_us: expected several lengths"),
        ({"windows_us": [14, 7, 14]}, "windows_us: 14 is given twice"),
        ({"windows_us": [7_000_007]}, "not 7000007"),
    ],
    HotKeys: [
        ({"capacity": 0}, "capacity: expected a whole number from 1 to 10000"),
        ({"threshold": 1.5}, "threshold: expected"),
        ({"slices": 0}, "slices: expected"),
        ({"window": "5 parsecs"}, "window: expected a number and a unit"),
    ],
}
USUAL = {
    Limit: {"amount": 100, "window": "1m"},
    Quota: {"text": "5/day"},
    BanPolicy: {},
    MetricWindow: {"slices": 10, "slice_us": 100},
    RollingTotals: {"slice_us": 7, "windows_us": [14]},
    HotKeys: {"capacity": 10, "threshold": 100, "window": "5s"},
}
ROWS = [
    pytest.param(make, *row, id=f"{make.__name__}-{number}")
    for make, rows in REFUSED.items()
    for number, row in enumerate(rows)
]


@pytest.mark.parametrize(("make", "given", "named"), ROWS)
def test_what_cannot_work_is_refused_with_what_would(make: Callable[..., object], given: object, named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**{**USUAL[make], **given}) if isinstance(given, dict) else make(given)
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert named in message
    assert len(message) < 500
    assert re.search("expected|example|name each|write|did you mean|use |keep|needs|shorter|unknown|is no", message)
