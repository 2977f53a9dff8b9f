"""Every file that users give is read in UTF-8, however Windows writes that; an error names another encoding."""

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Networks, RateLimitMiddleware, network
from slidegate.core.encodings import encoding_of
from slidegate.ops.cli import run

from .asgi import hello

LISTED = "# our list\n192.0.2.0/24\n2001:db8::/48 ; SBL1\n"
CONFIGURATION = 'limits = "3/minute"\nheaders = "legacy"\n'
LOG = "".join(
    f'203.0.113.{n % 3} - - [10/Oct/2026:13:55:{n:02d} +0000] "GET /a HTTP/1.1" 200 12 "-" "curl"\n' for n in range(30)
)
ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "UTF-16": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "UTF-16 of big ends": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "UTF-16 of big ends without a mark": lambda text: text.encode("utf-16-be"),
    "UTF-32": lambda text: codecs.BOM_UTF32_LE + text.encode("utf-32-le"),
    "UTF-32 of big ends": lambda text: codecs.BOM_UTF32_BE + text.encode("utf-32-be"),
    "UTF-32 without a mark": lambda text: text.encode("utf-32-le"),
}
UTF_8: dict[str, Callable[[str], bytes]] = {
    "UTF-8": str.encode,
    "with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "behind zeros": lambda text: bytes(9_000) + b"\n" + text.encode(),
}
"""How UTF-8 is written, the last one in a log that was truncated while a server wrote it."""
NEWLINES = ["\n", "\r\n"]


def failure(read: Callable[[Path], object], path: Path) -> str:
    """Return the error about a file; empty if it is read."""
    try:
        read(path)
    except ConfigurationError as error:
        return str(error)
    return ""


def of_list(path: Path) -> None:
    assert len(Networks.from_file(path)) == 2


def of_configuration(path: Path) -> None:
    assert RateLimitMiddleware.from_file(hello, path).app.rules


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "list": (LISTED, of_list),
    "configuration": (CONFIGURATION, of_configuration),
    "networks": (LISTED, network),
}


@pytest.mark.parametrize("newline", NEWLINES, ids=["lf", "crlf"])
@pytest.mark.parametrize("encoding", [*ENCODINGS, *UTF_8])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_in_another_encoding_names_it(kind: str, encoding: str, newline: str, tmp_path: Path) -> None:
    text, read = FILES[kind]
    path = tmp_path / "some.file"
    path.write_bytes((ENCODINGS | UTF_8)[encoding](text.replace("\n", newline)))
    said = failure(read, path)
    if encoding in ENCODINGS:
        assert encoding.split()[0] in said
        assert "UTF-8" in said
        return
    if encoding == "behind zeros":
        assert "UTF-16" not in said
        return
    assert not said or kind == "networks"


@pytest.mark.parametrize("newline", NEWLINES, ids=["lf", "crlf"])
@pytest.mark.parametrize("command", ["suggest", "simulate"])
@pytest.mark.parametrize("encoding", [*ENCODINGS, *UTF_8])
def test_a_log_in_another_encoding_names_it(
    encoding: str, command: str, newline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "access.log"
    path.write_bytes((ENCODINGS | UTF_8)[encoding](LOG.replace("\n", newline)))
    limit = ["--limit", "9/minute"] if command == "simulate" else []
    code = run([command, str(path), *limit])
    shown = capsys.readouterr()
    if encoding in ENCODINGS:
        assert code == 1
        assert f"it is in {encoding.split()[0]}, not in UTF-8" in shown.err
        assert shown.err.count("iconv") == 1
        assert shown.err.strip().isprintable()
        return
    assert code == 0, shown.err
    assert command == "simulate" or "30 requests of 3 clients" in shown.out
    assert "UTF-16" not in shown.err


def test_lines_in_utf_8_behind_those_of_another_encoding_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(codecs.BOM_UTF16_BE + "odd\n".encode("utf-16-be") + LOG.encode())
    assert run(["suggest", str(path)]) == 0
    shown = capsys.readouterr()
    assert "30 requests of 3 clients" in shown.out
    assert "it is in UTF-16, not in UTF-8" in shown.err


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")), st.integers(0, 3))
def test_no_text_in_utf_8_is_taken_for_another_encoding(text: str, zeros: int) -> None:
    assert encoding_of(bytes(zeros) + text.encode()) == ""
    assert encoding_of(codecs.BOM_UTF8 + text.encode()) == ""


@given(st.text(st.characters(min_codepoint=9, max_codepoint=126), min_size=3), st.sampled_from([*ENCODINGS]))
def test_text_of_ascii_is_recognised_in_every_other_encoding(text: str, encoding: str) -> None:
    assert encoding_of(ENCODINGS[encoding](text)) == encoding.split()[0]
