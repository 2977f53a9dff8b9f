"""The formats in which lists of networks come: what is read, what is skipped, and what is said about a bad line."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Networks
from slidegate.netlists.formats import FORMATS, read_entries
from slidegate.netlists.reading import NetworkList, NetworkReading

WRITTEN_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000

PLAIN = """\
\ufeff# netset
192.0.2.0/24
198.51.100.7\t5
203.0.113.0/24 ; SBL1
2001:db8::/32 # office

"""
JSONL = """\
{"cidr":"192.0.2.0/24","sblid":"SBL1","rir":"arin"}
{"cidr":"2001:db8::/32","sblid":"SBL2","rir":"ripencc"}
{"type":"metadata","timestamp":1800000000,"size":99,"records":2,"copyright":"c","terms":"t"}
"""
CSV = """\
# made by hand
"first seen",ip,reason
2026-01-31,192.0.2.7,"a, ""b"" c"
2026-01-31,2001:db8::1,c
"""
NGINX = """\
# blocked
deny 192.0.2.1;
deny  198.51.100.0/24 ; deny 2001:db8::/32; # two on a line
deny unix:;
allow all;
"""
RAW = """\
id,source,ip,reason,action,country,as,events_count,expiration,simulated,alert_id
1,crowdsec,Ip:192.0.2.7,crowdsecurity/ssh-bf,ban,,"64500 EXAMPLE, Inc",6,3h59m50.5s,false,1
2,cscli,Range:198.51.100.0/24,manual,ban,,,1,1h0m0s,false,2
3,CAPI,Ip:2001:db8::7,crowdsecurity/http-probing,ban,,,1,-365h13m23.900360074s,false,3
4,crowdsec,Ip:192.0.2.8,crowdsecurity/ssh-bf,captcha,,,6,4h,false,4
"""
ALERTS = """\
[
 {
  "decisions": [
   { "duration": "3h59m50.5s", "scope": "Ip", "type": "ban", "value": "192.0.2.7" },
   { "duration": "1h0m0s", "scope": "range", "type": "ban", "value": "198.51.100.0/24" },
   { "duration": "4h", "scope": "Ip", "type": "captcha", "value": "192.0.2.8" }
  ]
 }
]
"""
BANS = """\
192.0.2.7 \t2026-01-31 12:00:00 + 600 = 2026-01-31 12:10:00
2001:db8::7 \t2026-01-31 12:00:00 + 86400 = 2026-02-01 12:00:00
"""
SAMPLES = {"plain": PLAIN, "jsonl": JSONL, "csv": CSV}


def entries(
    text: str, format: str = "auto", column: str | int | None = None
) -> tuple[list[tuple[int, str, int | None]], dict[str, int]]:
    skipped: Counter[str] = Counter()
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    return list(read_entries(lines, format, column, WRITTEN_US, skipped)), dict(skipped)


def texts(text: str, format: str = "auto", column: str | int | None = None) -> list[str]:
    return [entry for _, entry, _ in entries(text, format, column)[0]]


def bad(text: str, format: str = "auto", column: str | int | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        entries(text, format, column)
    return str(caught.value)


# -- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["auto", "plain"])
def test_plain_lists_have_comments_scores_and_references(format: str) -> None:
    assert entries(PLAIN, format) == (
        [
            (2, "192.0.2.0/24", None),
            (3, "198.51.100.7", None),
            (4, "203.0.113.0/24", None),
            (5, "2001:db8::/32", None),
        ],
        {},
    )


@pytest.mark.parametrize("format", ["auto", "jsonl"])
def test_spamhaus_drop_comes_as_lines_of_json(format: str) -> None:
    assert entries(JSONL + "\n", format) == ([(1, "192.0.2.0/24", None), (2, "2001:db8::/32", None)], {})


@pytest.mark.parametrize(("format", "column"), [("auto", "ip"), ("csv", "ip"), ("csv", 2), ("auto", 2)])
def test_csv_has_a_column_with_or_without_a_heading(format: str, column: str | int) -> None:
    expected = [(3, "192.0.2.7", None), (4, "2001:db8::1", None)]
    assert entries(CSV, format, column) == (expected, {})
    if column == 2:
        without = "\n\n2026-01-31,192.0.2.7,a\n2026-01-31,2001:db8::1,c\n"
        assert entries(without, format, column) == (expected, {})


def test_the_first_column_of_csv_is_the_default_one() -> None:
    assert texts("ip,score\n192.0.2.7,5\n198.51.100.0/24,9\n") == ["192.0.2.7", "198.51.100.0/24"]
    assert texts("192.0.2.7,5\n") == ["192.0.2.7"]
    assert texts("192.0.2.7\n", "csv") == ["192.0.2.7"]


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        (NGINX, "nginx", ["192.0.2.1", "198.51.100.0/24", "2001:db8::/32"]),
        (BANS, "fail2ban", ["192.0.2.7", "2001:db8::7"]),
        (RAW, "crowdsec", ["192.0.2.7", "198.51.100.0/24", "2001:db8::7"]),
        (ALERTS, "crowdsec", ["192.0.2.7", "198.51.100.0/24"]),
    ],
)
def test_lists_that_other_tools_write_are_read(text: str, format: str, expected: list[str]) -> None:
    assert texts(text, format) == texts(text, "auto") == expected


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n; comments\n", "# a, b\n"])
def test_a_list_of_nothing_is_one_in_any_format(text: str) -> None:
    assert entries(text) == ([], {})
    if not text.strip():
        for format in FORMATS:
            assert entries(text, format) == ([], {})


@pytest.mark.parametrize("format", SAMPLES)
def test_windows_lines_and_a_byte_order_mark_are_read_alike(format: str, tmp_path: Path) -> None:
    column = "ip" if format == "csv" else None
    unix, windows = tmp_path / "unix", tmp_path / "windows"
    text = SAMPLES[format].removeprefix("\ufeff")
    unix.write_bytes(text.encode())
    windows.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    for path in (unix, windows):
        os.utime(path, ns=(0, WRITTEN_US * 1_000))
    read = [list(NetworkReading(path, column=column)) for path in (unix, windows)]
    assert read[0] == read[1] != []


# -- what is refused -------------------------------------------------------------------------------------------------

BAD = [
    ("192.0.2.0 192.0.2.255 24\n", "plain", "line 1: expected one address, network or range a line, "),
    ("\n192.0.2.1 2001:db8::1", "plain", "line 2: expected one address"),
    ('{"cidr":"192.0.2.0/24"}\n{"cidr":"198', "auto", "line 2: not JSON"),
    ('{"cidr":"192.0.2.0/24"}\n[1]', "auto", 'line 2: expected an object with a cidr, for example {"cidr": "192.0'),
    ('{"cidr":5}', "auto", "line 1: expected an object with a cidr"),
    ('{"asn":64500}', "jsonl", "line 1: expected an object with a cidr"),
    ('{"cidr":"192.0.2.0/24"}\n{"type":"metadata","records":9}', "auto", "line 2: expected 9 records, but there are 1"),
    ('{"cidr":' * 100_000, "jsonl", "line 1: "),
    ("deny 192.0.2.1;\nallow 192.0.2.0/24;", "auto", "line 2: allow 192.0.2.0/24 is an exception"),
    (f'{{"cidr": "192.0.2.0/24", "asn": {"1" * 5_000}}}', "auto", "line 1: not JSON that can be read: a number has"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("192.0.2.0 192.0.2.1 " + "x" * 5_000, "plain"),
        ("[" + "1," * 3_000 + "1]", "jsonl"),
        ('{"type": "metadata", "records": "' + "9" * 5_000 + '"}', "jsonl"),
        ("x" * 5_000, "csv"),
    ],
)
def test_of_a_long_line_a_message_shows_the_beginning(text: str, format: str) -> None:
    assert len(bad(text, format, "ip" if format == "csv" else None)) < 220


@pytest.mark.parametrize(("text", "format", "message"), BAD)
def test_a_bad_line_is_named_with_what_was_expected(text: str, format: str, message: str) -> None:
    assert bad(text, format).startswith(message)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (CSV, "address", "line 2: expected a column named 'address', not one of first seen, ip, reason"),
        (CSV, 4, "line 2: expected 4 columns, but there are 3"),
        (CSV + "2026-01-31\n", "ip", "line 5: expected 2 columns, but there are 1"),
        (CSV + '2026-01-31,192.0.2.7,"cut', "ip", "line 5: not CSV: unexpected end of data"),
    ],
)
def test_bad_csv_is_named_with_what_was_expected(text: str, column: str | int, message: str) -> None:
    assert bad(text, "csv", column).startswith(message)


def test_an_address_in_the_first_line_of_csv_is_no_heading() -> None:
    assert texts("10/8,a\n192.0.2.7,b\n") == ["10/8", "192.0.2.7"]
    assert texts("\u0661.\u0662.\u0663.\u0664,a\n") == ["\u0661.\u0662.\u0663.\u0664"]
    assert texts("example.org,a\n") == ["example.org"]
    assert texts("ip\nip\n", "csv") == ["ip"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "plian"}, "format: expected one of auto, plain, .*not 'plian'; did you mean 'plain'?"),
        ({"format": None}, "format: expected one of auto, plain, .*not None"),
        ({"format": "plain", "column": 1}, "column: only csv has columns, not format 'plain'"),
        ({"column": 0}, 'column: expected a name or a number from 1, for example "ip", not 0'),
        ({"column": -1}, "column: expected a name or a number from 1"),
        ({"column": ""}, "column: expected a name or a number from 1"),
        ({"column": True}, "column: expected a name or a number from 1"),
        ({"column": 1.5}, "column: expected a name or a number from 1"),
    ],
)
def test_a_format_or_column_that_cannot_be_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        Networks.from_file("any", **options)  # type: ignore[arg-type]


INVALID = ["010.8.8.8", "\u0661.\u0662.\u0663.\u0664", "10/8", "192.0.2.1/24"]
HOLDERS = {
    "plain": "192.0.2.1\n{}\n",
    "jsonl": '{{"cidr":"192.0.2.1"}}\n{{"cidr":"{}"}}\n',
    "csv": "192.0.2.1,a\n{},b\n",
}


@pytest.mark.parametrize("text", INVALID)
@pytest.mark.parametrize("format", HOLDERS)
def test_what_is_no_network_is_none_in_any_format(format: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(HOLDERS[format].format(text), "utf-8")
    with pytest.raises(ConfigurationError) as caught:
        Networks.from_file(path, format=format)
    assert f"{path}, line 2: network: {text!r} " in str(caught.value)


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_file_that_was_cut_off_is_never_read_as_something_else(format: str, data: st.DataObject) -> None:
    text = SAMPLES[format].removeprefix("\ufeff")
    column = "ip" if format == "csv" else None
    whole = texts(text, format, column)
    part = text[: data.draw(st.integers(0, len(text)))]
    try:
        found = texts(part, format, column)
        Networks(found)
    except ConfigurationError:
        return
    # Nobody can tell that 192.0.2.1 was to be 192.0.2.17, but all before it is what it was.
    assert found[:-1] == whole[: max(len(found) - 1, 0)]


# -- ranges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1.0.0.0-1.0.0.255", "1.0.0.0 to 1.0.0.255 # a comment", "1.0.0.0 /24 AU"])
def test_a_range_is_read_as_the_range_that_it_is(text: str, tmp_path: Path) -> None:
    found = Networks.from_file(written(tmp_path / "list", f"# ranges\n{text}\n"))
    assert found == Networks.of_ranges([(4, 0x0100_0000, 0x0100_00FF)])


# Whoever writes one of these means more than one address, in a form that is not read.
MEANT = (
    "1.0.0.0,1.0.0.255,AU",
    '"1.0.0.0","1.0.0.255","AU"',
    "1.0.0.0 255.255.255.0",
    "1.0.0.0 1.0.2.255",
    "1.0.0.0 mask 255.255.255.0",
    "1.0.0.0/255.255.255.0",
    "1.0.0.0|1.0.0.255|AU",
    "1.0.0.255 - 1.0.0.0",
    "1.0.0.0 - 1.0.0.256",
    "1.0.0.0 /2x",
    "1.0.0.*",
    "16777216,16777471,AU",
)


@pytest.mark.parametrize("text", MEANT)
@pytest.mark.parametrize("place", [1, 2])
def test_what_means_more_than_an_address_never_becomes_one(text: str, place: int, tmp_path: Path) -> None:
    """In the first line the format is guessed by it; in a further one it follows what is plain."""
    before = "" if place == 1 else "192.0.2.0/24\n"
    with pytest.raises(ConfigurationError, match=rf"list, line {place}: "):
        Networks.from_file(written(tmp_path / "list", f"{before}{text}\n"))


@pytest.mark.parametrize(
    "text", ["192.0.2.7 5", "192.0.2.7 spam", "192.0.2.7 AS64496", "192.0.2.7 ; SBL1", "192.0.2.7 # -"]
)
def test_further_columns_are_not_read(text: str, tmp_path: Path) -> None:
    assert Networks.from_file(written(tmp_path / "list", text)) == Networks(["192.0.2.7"])


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0.0.0.0/0\n", "::/0\n", "192.0.2.7\n::ffff:0:0/96\n", "deny 192.0.2.7/0;\n"])
def test_a_file_does_not_list_everybody(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "all.netset", text)
    with pytest.raises(
        ConfigurationError, match=r"all\.netset, line [12]: network: '.*/\d+' is every address; leave it"
    ):
        Networks.from_file(path, strict=False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
def test_a_pipe_is_no_file_and_nobody_waits_for_who_writes_to_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.netset")
    for path in (tmp_path / "pipe.netset", Path(os.devnull)):
        with pytest.raises(ConfigurationError, match="expected a file that can be read again, no pipe or device"):
            Networks.from_file(path)


# -- entries that end ------------------------------------------------------------------------------------------------


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    os.utime(path, ns=(0, WRITTEN_US * 1_000))
    return path


def test_an_entry_is_listed_until_the_microsecond_in_which_it_ends(tmp_path: Path) -> None:
    listed = NetworkList(NetworkReading(written(tmp_path / "decisions.csv", RAW)))
    assert (listed.count, listed.has_ends, len(listed.networks)) == (3, True, 0)
    assert listed.skipped == {"type captcha": 1}
    inside = (4, 0xC633_6442)  # 198.51.100.66
    end_us = WRITTEN_US + HOUR_US
    assert listed.ending_covers(*inside, end_us - 1)
    assert not listed.ending_covers(*inside, end_us)
    assert not listed.ending_covers(4, inside[1] + 256, WRITTEN_US)
    assert not listed.ending_covers(6, 0x2001_0DB8 << 96 | 7, WRITTEN_US), "over already"
