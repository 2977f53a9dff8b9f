"""The samples of all formats yield the same requests; lines in custom formats."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import ConfigurationError
from slidegate.logs import AccessLogs, AccessRecord, Skip

SAMPLES = Path(__file__).resolve().parent / "samples"
OPTIONS: dict[str, dict[str, Any]] = {
    "nginx_custom.log": {
        "format": '$remote_addr - $remote_user [$time_local] $host "$request" $status $body_bytes_sent '
        'rt=$request_time "$http_referer" "$http_user_agent" key="$http_x_api_key"'
    },
    "own.jsonl": {
        "fields": {
            **{"time": "when", "client": "http.ip", "method": "http.verb", "path": "http.url", "status": "http.status"},
            **{"user_agent": "http.agent", "header:X-API-Key": "http.key"},
        }
    },
}
NAMES = sorted(path.name for path in SAMPLES.iterdir())
WITHOUT_REFERER = {"common.log", "own.jsonl"}
WITH_HOST = {"vhost_combined.log", "nginx_custom.log", "nginx.jsonl", "caddy.jsonl", "traefik.jsonl"}
WITH_KEY = {"nginx_custom.log", "nginx.jsonl", "caddy.jsonl", "traefik.jsonl", "own.jsonl"}
NOON_US = 1_715_515_200_000_000  # 2024-05-12 12:00:00 UTC
RECORD = AccessRecord(NOON_US, "192.0.2.7", "GET", "/a?b=1", 200, None)


def requests(path: Path, **options: Any) -> list[AccessRecord]:
    logs = AccessLogs([path], **options)
    found = [record if record.method else record._replace(path="-") for record in logs]
    assert logs.counts.broken == 0
    return [record._replace(headers=tuple(sorted(record.headers))) for record in found]


def expected(name: str) -> list[AccessRecord]:
    """Return the expected requests of a sample: those of the Combined sample, with the fields that its format logs."""
    key = (("x-api-key", "key-of-nobody"),) if name in WITH_KEY else ()
    return [
        record._replace(
            user_agent=None if name == "common.log" else record.user_agent,
            host="www.example.org" if name in WITH_HOST else None,
            headers=(*(() if name in WITHOUT_REFERER else record.headers), *key),
        )
        for record in requests(SAMPLES / "combined.log")
    ]


def read(line: str, **options: Any) -> AccessRecord | Skip:
    """Return the record of a log of one line, or the reason it is skipped."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(line.encode(errors="replace"))
        file.flush()
        logs = AccessLogs([file.name], **options)
        found = [*logs]
        reasons = [*logs.counts.skipped]
    assert len(found) + len(reasons) >= 1
    return found[0] if found else reasons[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_holds_the_same_requests_also_between_lines_of_others(name: str, tmp_path: Path) -> None:
    assert requests(SAMPLES / name, **OPTIONS.get(name, {})) == expected(name)
    assert len(expected(name)) >= 40
    if name not in OPTIONS:
        mixed = tmp_path / "mixed.log"
        mixed.write_bytes(b"".join((SAMPLES / each).read_bytes() for each in (name, "combined.log", name)))
        assert len(requests(mixed)) == 3 * len(expected(name))


# -- nginx format strings ----------------------------------------------------------------------------------------------

TIME = "12/May/2024:12:00:00 +0000"
CUSTOM: dict[str, tuple[str, str, AccessRecord]] = {
    "nginx's own": (
        '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
        '"$http_user_agent"',
        f'192.0.2.7 - jane doe [{TIME}] "GET /a?b=1 HTTP/1.1" 200 7 "-" "curl \\x22/8"',
        RECORD._replace(user_agent="curl \\x22/8"),
    ),
    "a line of the configuration": (
        "log_format  timed  escape=default '$remote_addr [$time_iso8601] '\n    '\"$request\" $status $request_time';",
        '192.0.2.7 [2024-05-12T14:00:00+02:00] "GET /a?b=1 HTTP/1.1" 200 0.250',
        RECORD,
    ),
    "seconds with decimals": (
        "$msec $remote_addr $request_method $request_uri $status",
        "1715515200.250 192.0.2.7 GET /a?b=1 200",
        RECORD._replace(time_us=NOON_US + 250_000),
    ),
    "path and arguments": (
        "$remote_addr [$time_local] $request_method $uri$is_args$args $status",
        f"192.0.2.7 [{TIME}] GET /a?b=1 200",
        RECORD,
    ),
    "arguments of their own": (
        '$remote_addr [$time_local] $request_method "$uri" "$args" $status',
        f'192.0.2.7 [{TIME}] GET "/a" "b=1" 200',
        RECORD,
    ),
    "an address list without quotation marks": (
        '$http_x_forwarded_for [$time_local] "$request" $status',
        f'203.0.113.9, 192.0.2.7:5123 [{TIME}] "GET /a?b=1 HTTP/1.1" 200',
        RECORD._replace(headers=(("x-forwarded-for", "203.0.113.9, 192.0.2.7:5123"),)),
    ),
    "JSON in another order, braces around a name": (
        '{"at":"$time_iso8601","ip":"${remote_addr}","status":$status,"req":"$request","host":"$host"}',
        '{"at":"2024-05-12T12:00:00+00:00","ip":"192.0.2.7","status":200,"req":"GET /a?b=1 HTTP/1.1",'
        '"host":"a.example:8443"}',
        RECORD._replace(host="a.example"),
    ),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_a_custom_format_is_read_by_its_format_string_also_behind_the_prefix_of_syslog(name: str) -> None:
    format, line, record = CUSTOM[name]
    assert read(line + "\n", format=format) == record
    assert read(f"May 12 12:00:00 web1 nginx: {line}", format=format) == record


@pytest.mark.parametrize("name", CUSTOM)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_change_of_a_line_makes_a_custom_format_raise_and_none_cut_short_gives_another_client(
    name: str, data: st.DataObject
) -> None:
    format, line, whole = CUSTOM[name]
    place = data.draw(st.integers(1, len(line)))
    cut = read(line[:place], format=format)
    assert isinstance(cut, Skip) or cut[:3] == whole[:3]
    read(line[:place] + data.draw(st.text(max_size=20)) + line[place + data.draw(st.integers(0, 9)) :], format=format)


@pytest.mark.parametrize(
    ("format", "words"),
    [
        ("", "is not an nginx format string"),
        ('%h %l %u %t "%r" %>s', "is not an nginx format string"),
        ('[$time_local] "$request" $status', "lacks the client"),
        ('$remote_addr [$time_local] "$request"', "lacks the status"),
        ('$remote_addr$time_local "$request" $status', "$remote_addr and $time_local are adjacent"),
        (7, "is not an nginx format string"),
    ],
)
def test_a_format_that_cannot_work_is_refused_with_one_that_can(format: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)) as refused:
        AccessLogs([SAMPLES / "common.log"], format=format)
    assert "such as '$remote_addr - $remote_user" in str(refused.value)


# -- JSON lines with custom field names --------------------------------------------------------------------------------

FIELDS = {"time": "t", "client": "c.ip", "status": "s", "request": "r"}
LINE = {"t": "2024-05-12T12:00:00Z", "c": {"ip": "192.0.2.7"}, "s": 200, "r": "GET /a?b=1 HTTP/1.1"}


def by_fields(line: object, **fields: str) -> AccessRecord | Skip:
    return read(json.dumps(line), fields={**FIELDS, **fields})


def test_fields_are_found_by_their_names() -> None:
    assert by_fields(LINE) == RECORD
    assert by_fields({**LINE, "c": None, "c.ip": "192.0.2.7:5123"}) == RECORD
    assert by_fields({**LINE, "h": "a.example:80"}, host="h") == RECORD._replace(host="a.example")
    found = by_fields({**LINE, "h": {"X-API-Key": ["k", "l"]}}, **{"header:X-API-Key": "h.X-API-Key"})
    assert isinstance(found, AccessRecord)
    assert (found.header("x-api-KEY"), found.header("x-other")) == ("k", None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "lack time, client, status, request (or method and path)"),
        ({**FIELDS, "user_agnet": "a"}, "did you mean 'user_agent'?"),
        ({**FIELDS, "header:": "a"}, "'header:' is not a part of a record"),
        ({**FIELDS, "host": "a..b"}, "'a..b' is not the name of a field"),
    ],
)
def test_fields_that_cannot_work_are_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        AccessLogs([SAMPLES / "own.jsonl"], fields=fields)
    with pytest.raises(ConfigurationError, match="not both"):
        AccessLogs([SAMPLES / "own.jsonl"], format="$remote_addr", fields=fields)


def test_a_record_gives_header_fields_by_their_names() -> None:
    headers = (("x-api-key", "k"), ("referer", "/from"))
    record = RECORD._replace(user_agent="curl/8", host="a.example", headers=headers)
    names = ("User-Agent", "REFERER", "host", "X-Api-Key", "Cookie")
    assert [record.header(name) for name in names] == ["curl/8", "/from", "a.example", "k", None]
