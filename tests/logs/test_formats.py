"""Parsing valid lines, invalid lines and whole files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate.logs import MAX_LINE_BYTES, AccessRecord, Skip, parse_line

NOON_US = 1_715_515_200_000_000  # 2024-05-12 12:00:00 UTC
COMMON = '192.0.2.7 - - [12/May/2024:12:00:00 +0000] "GET /a?b=1 HTTP/1.1" 200 5120'
COMBINED = f'{COMMON} "https://example.org/" "Mozilla/5.0 (X11; \\"odd\\")"'
RECORD = AccessRecord(NOON_US, "192.0.2.7", "GET", "/a?b=1", 200, None)

CADDY_REQUEST = {"remote_ip": "198.51.100.1", "client_ip": "192.0.2.7", "method": "GET", "uri": "/a?b=1"}
CADDY = {
    **{"ts": 1715515200.25, "logger": "http.log.access.log0", "status": 200},
    "request": {**CADDY_REQUEST, "headers": {"User-Agent": ["curl/8"]}},
}
TRAEFIK = {
    **{"ClientHost": "192.0.2.7", "RequestMethod": "GET", "RequestPath": "/a?b=1", "DownstreamStatus": 200},
    **{"StartUTC": "2024-05-12T12:00:00.250000999Z", "request_User-Agent": "curl/8"},
}
NGINX = {
    **{"time_iso8601": "2024-05-12T14:00:00.25+02:00", "remote_addr": "192.0.2.7", "request_method": "GET"},
    **{"uri": "/a", "args": "b=1", "status": "200", "http_user_agent": "curl/8"},
}
JSON_RECORD = RECORD._replace(time_us=NOON_US + 250_000, user_agent="curl/8")


def changed(line: dict[str, Any], **fields: Any) -> bytes:
    """Return a JSON line with changed fields; None removes a field."""
    return json.dumps({name: value for name, value in {**line, **fields}.items() if value is not None}).encode()


CLIENTS = [
    ("192.0.2.7 - jane doe", "192.0.2.7", None),
    ("198.51.100.1 192.0.2.7 - -", "198.51.100.1", None),  # the identd field is not the client
    ("example.org 192.0.2.7 - -", "192.0.2.7", "example.org"),
    ("example.org:80 crawler.example.net - -", "crawler.example.net", "example.org"),
    ("192.0.2.7:5123 - jane doe", "192.0.2.7", None),
    ("[2001:db8::1]:443 - -", "2001:db8::1", None),
    ("crawler.example.net:5123 - -", "crawler.example.net", None),
    ("example.org:80 192.0.2.7:5123 - -", "192.0.2.7", "example.org"),
]
"""The text before the time, with the expected client and virtual host."""

REQUESTS = [
    ('"GET /a?b=1 HTTP/1.1" 200 5120 "-" "Mozilla/5.0 (comp', {}),  # a truncated user agent
    ('"GET /\ufffd HTTP/1.1" 200 -', {"path": "/\ufffd"}),
    ('"\\x16\\x03\\x01" 400 7', {"method": "", "path": "\\x16\\x03\\x01", "status": 400}),
    ('"-" 408 0', {"method": "", "path": "-", "status": 408}),
    (
        '"GET /a?b=1 HTTP/1.1" 200 1 "https://example.org/" "Mozilla/5.0 (X11; \\"odd\\")"',
        {"user_agent": 'Mozilla/5.0 (X11; \\"odd\\")', "headers": (("referer", "https://example.org/"),)},
    ),
]
"""The text after the time, with the fields that differ from `RECORD`."""

JSON_LINES: list[tuple[bytes, dict[str, Any]]] = [
    (changed(CADDY, request={**CADDY["request"], "client_ip": ""}), {"client": "198.51.100.1"}),
    (changed(CADDY, request={**CADDY["request"], "client_ip": "[2001:db8::1]:443"}), {"client": "2001:db8::1"}),
    (
        changed(CADDY, request={"remote_addr": "[2001:db8::1]:4711", "method": "GET", "uri": "/a?b=1"}),
        {"client": "2001:db8::1", "user_agent": None},
    ),
    (changed(TRAEFIK, ClientHost="203.0.113.9, 192.0.2.7:5123"), {}),
    (changed(TRAEFIK, StartUTC=None, time="2024-05-12T12:00:00Z"), {"time_us": NOON_US}),
    (changed(NGINX, request="POST /b HTTP/1.1", request_method=None, uri=None), {"method": "POST", "path": "/b"}),
    (changed(NGINX, request_method="-", uri="-", args="", status=400), {"method": "", "path": "-", "status": 400}),
]

BAD: dict[str, tuple[bytes, Skip]] = {
    "nothing": (b"", Skip.EMPTY),
    "NUL": (COMMON.encode().replace(b"/a", b"/\0"), Skip.BINARY),
    "UTF-16": (COMMON.encode("utf-16"), Skip.BINARY),
    "too few words before the date": (COMMON.replace(" - -", "").encode(), Skip.FORMAT),
    "backslashes without an end": (b"[1] " + b'x [a] "' + b"\\" * 50_000, Skip.FORMAT),
    "quotes without an end": (b'x - - [a] "' + b'" "' * 20_000, Skip.FORMAT),
    "no client": (COMMON.replace("192.0.2.7", "-").encode(), Skip.CLIENT),
    "no status": (COMMON.replace("200 5120", "- -").encode(), Skip.STATUS),
    "NaN": (changed(CADDY, ts=float("nan")), Skip.JSON),
    "a float beyond all floats": (changed(CADDY).replace(b"1715515200.25", b"1e999"), Skip.TIME),
    "an integer of 5,000 digits": (changed(CADDY).replace(b"1715515200.25", b"9" * 5_000), Skip.JSON),
    "a key twice": (changed(NGINX)[:-1] + b', "remote_addr": "203.0.113.9"}', Skip.JSON),
    "a time with 100 decimals": (changed(NGINX, time_iso8601=f"2024-05-12T12:00:00.{'0' * 100}Z"), Skip.TIME),
    "a client list that ends in nothing": (changed(TRAEFIK, ClientHost="192.0.2.7,"), Skip.CLIENT),
    "Caddy's second word on an error": (changed(CADDY, logger="http.log.error.log0"), Skip.FORMAT),
}

TIMES = [
    ("12/May/2024:12:00:00 +0000", "2024-05-12T12:00:00"),
    ("12/May/2024:00:00:00 +0545", "2024-05-11T18:15:00"),
    ("27/Oct/2024:02:30:00 +0200", "2024-10-27T00:30:00"),  # the same hour of the clock,
    ("27/Oct/2024:02:30:00 +0100", "2024-10-27T01:30:00"),  # an hour later
    ("2024-05-12T12:00:00.123456789Z", "2024-05-12T12:00:00.123456"),
    ("1715515200.123", "2024-05-12T12:00:00.123"),
    ("31/Feb/2024:12:00:00 +0000", None),
    ("12/May/2024:12:00:00 +0060", None),
    ("31/Dec/1969:23:59:59 +0000", None),
    ("2024-05-12T12:00:00", None),
]

NUMBERS = [
    (1715515200.25, NOON_US + 250_000),
    (1715515200250000, NOON_US + 250_000),
    (1715515200250000999, NOON_US + 250_000),
    (0, 0),
    (253_402_300_799_999_999_999, 253_402_300_799_999_999),
    (253_402_300_800_000_000_000, None),  # the year 10000
]


@pytest.mark.parametrize(("words", "client", "host"), CLIENTS)
def test_a_client_is_found_with_a_port_or_without_and_beside_a_virtual_host(
    words: str, client: str, host: str | None
) -> None:
    found = parse_line(COMMON.replace("192.0.2.7 - -", words).encode())
    assert found == RECORD._replace(client=client, host=host)


@pytest.mark.parametrize(("words", "differs"), REQUESTS)
def test_a_request_is_read_whatever_the_client_has_sent(words: str, differs: dict[str, Any]) -> None:
    line = f"{COMMON.partition('] ')[0]}] {words}".encode().replace("\ufffd".encode(), b"\xff")
    for whole in (line, b"\xef\xbb\xbf" + line, line + b"\r\n"):
        assert parse_line(whole) == RECORD._replace(**differs)


@pytest.mark.parametrize(("line", "differs"), JSON_LINES)
def test_a_line_of_json_becomes_its_record(line: bytes, differs: dict[str, Any]) -> None:
    assert parse_line(line) == JSON_RECORD._replace(**differs)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_says_why(name: str) -> None:
    line, reason = BAD[name]
    assert parse_line(line) is reason


def test_a_line_that_is_nested_deep_is_bad_whether_or_not_json_reads_it() -> None:
    # From Python 3.14 on, how deep that is depends on the stack.
    line = b'{"remote_addr":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
    assert parse_line(line) in (Skip.JSON, Skip.FORMAT)


@pytest.mark.parametrize(("text", "moment"), TIMES)
def test_a_time_is_right_or_refused(text: str, moment: str | None) -> None:
    found = parse_line(COMMON.replace("12/May/2024:12:00:00 +0000", text).encode())
    if moment is None:
        assert found is Skip.TIME
    else:
        assert isinstance(found, AccessRecord)
        assert found.time_us == round(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp() * 1_000_000)


@pytest.mark.parametrize(("number", "time_us"), NUMBERS)
def test_a_number_is_a_time_in_the_unit_of_its_size(number: float, time_us: int | None) -> None:
    found = parse_line(changed(CADDY, ts=number))
    assert found is Skip.TIME if time_us is None else isinstance(found, AccessRecord) and found.time_us == time_us


def test_a_line_cut_anywhere_is_skipped_or_says_nothing_wrong() -> None:
    line = f"www.example.org:443 {COMBINED}".encode()
    whole = parse_line(line)
    assert isinstance(whole, AccessRecord)
    found = [parse_line(line[:end]) for end in range(len(line))]
    records = [record for record in found if isinstance(record, AccessRecord)]
    assert len(records) < len(found)
    # A truncated number is a smaller number; truncated text is dropped.
    assert {record[:5] for record in records} == {whole[:5]}
    assert {record.host for record in records} == {"www.example.org"}
    assert {(record.header("referer"), record.user_agent) for record in records} == {(None, None)}


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_raise(line: bytes) -> None:
    assert isinstance(parse_line(line), (AccessRecord, Skip))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["192.0.2.7", "GET", "/", "200"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*CADDY, *CADDY_REQUEST]), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.sampled_from([CADDY, TRAEFIK, NGINX]), st.data())
def test_no_json_value_in_any_field_raises(line: dict[str, Any], data: st.DataObject) -> None:
    fields = data.draw(
        st.dictionaries(st.sampled_from([*line, "request", "request_uri", "msec"]), JSON_VALUES, min_size=1)
    )
    found = parse_line(json.dumps({**line, **fields}).encode())
    if isinstance(found, AccessRecord):
        assert 0 <= found.time_us < 253_402_300_800_000_000
        assert found.client.strip()
        assert 0 <= found.status <= 999


@pytest.mark.parametrize("extra", [0, 1])
def test_a_line_is_too_long_beyond_the_limit_and_not_before(extra: int) -> None:
    line = f"{COMMON} ".encode().ljust(MAX_LINE_BYTES + extra, b"a")
    assert parse_line(line + b"\n") == (Skip.TOO_LONG if extra else RECORD)


@given(
    ident=st.text(st.characters(codec="latin-1", exclude_categories=["Cc", "Z"], exclude_characters='"'), min_size=1),
    user=st.text(st.characters(codec="latin-1", exclude_categories=["Cc"], exclude_characters='"'), min_size=1),
)
def test_no_name_makes_another_client_of_an_address(ident: str, user: str) -> None:
    found = parse_line(COMMON.replace("- -", f"{ident} {user}").encode())
    assert found == RECORD or (found is Skip.FORMAT and not user.strip())


SYSLOG = (
    "<190>May 12 12:00:00 web1 nginx: ",
    "May 12 12:00:00 web1 nginx[811]: ",
    "2024-05-12T12:00:00.123456+00:00 web1 nginx: ",
    "<190>1 2024-05-12T12:00:00Z web1 nginx 811 - - ",
)


@pytest.mark.parametrize("prefix", SYSLOG)
@pytest.mark.parametrize("line", [COMMON, f"example.org {COMMON}", json.dumps(NGINX)])
def test_what_syslog_writes_in_front_is_left_out(prefix: str, line: str) -> None:
    assert parse_line((prefix + line).encode()) == parse_line(line.encode())
    assert isinstance(parse_line(line.encode()), AccessRecord)
