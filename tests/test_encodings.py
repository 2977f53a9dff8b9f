"""Every file that users give is read in UTF-8, with its mark or without; one in another encoding is refused."""

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest

from slidegate import ConfigurationError, Networks, RateLimitMiddleware, network
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
    "UTF-8": str.encode,
    "UTF-8 with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
}


FILES: dict[str, tuple[str, Callable[[Path], int]]] = {
    "list": (LISTED, lambda path: len(Networks.from_file(path))),
    "configuration": (CONFIGURATION, lambda path: len(RateLimitMiddleware.from_file(hello, path).app.rules)),
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_in_another_encoding_is_refused(kind: str, encoding: str, newline: str, tmp_path: Path) -> None:
    text, read = FILES[kind]
    path = tmp_path / "some.file"
    path.write_bytes(ENCODINGS[encoding](text.replace("\n", newline)))
    if encoding.startswith("UTF-8"):
        assert read(path) == {"list": 2, "configuration": 1}[kind]
        return
    for reads in (read, network):
        with pytest.raises(ConfigurationError, match=r"some\.file"):
            reads(path)


LOGS = ENCODINGS | {"UTF-8 behind zeros": lambda text: bytes(9_000) + b"\n" + text.encode()}
"""The last one is a log that was truncated while a server wrote it."""


@pytest.mark.parametrize("encoding", LOGS)
def test_a_log_in_another_encoding_is_refused(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(LOGS[encoding](LOG))
    for command in (["suggest"], ["simulate", "--limit", "9/minute"]):
        code, shown = run([*command, str(path)]), capsys.readouterr()
        if encoding.startswith("UTF-8"):
            assert code == 0, shown.err
            assert command != ["suggest"] or "30 requests of 3 clients" in shown.out
        else:
            assert code == 1
            assert "lines cannot be read" in shown.err
            assert shown.err.strip().isprintable()
