"""Recognises files that are not in UTF-8, so that errors about them can say so.

Editors and shells of Windows write UTF-16, with or without a mark at its beginning. Read as UTF-8 it is a text in which
every other character is a NUL.
"""

from __future__ import annotations

import codecs
from typing import Final

_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),  # before that of UTF-16, with which it begins
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_SAMPLE: Final = 4_096


def encoding_of(content: bytes) -> str:
    """Return the encoding of a text that is not in UTF-8: ``"UTF-16"`` or ``"UTF-32"``; empty for any other content.

    Without a mark, texts of mostly ASCII are recognised by their NULs. Those at the start do not count: a log that was
    truncated while a server wrote it begins with any number of them.
    """
    for mark, name in _MARKS:
        if content.startswith(mark):
            return name
    sample = content[:_SAMPLE].lstrip(b"\0")
    zeros = sample.count(0)
    if len(sample) < 3 or 3 * zeros < len(sample):
        return ""
    return "UTF-32" if 5 * zeros > 3 * len(sample) else "UTF-16"


def utf_8_needed(content: bytes) -> str:
    """Return what is wrong with the encoding of a file, and its remedy; empty if nothing is known to be wrong."""
    name = encoding_of(content)
    return name and f"it is in {name}; save it as UTF-8, for example with: iconv -f {name} -t UTF-8"
