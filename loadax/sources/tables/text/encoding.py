"""Recognises text that is not UTF-8 by its first bytes."""

import codecs
import re

# Advice for text in an unknown encoding.
UTF_8 = "write the file in UTF-8, as `iconv -f LATIN1 -t UTF-8` does for Latin-1"

# Bytes that programs on Windows write at the beginning of a file.
BOM = codecs.BOM_UTF8

_STARTS = (
    ("utf-8-sig", re.compile(BOM)),
    ("utf-32", re.compile(b"%b|%b" % (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))),
    ("utf-16", re.compile(b"%b|%b" % (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))),
    ("utf-16le", re.compile(rb"(?:[^\0]\0){2}", re.DOTALL)),
    ("utf-16be", re.compile(rb"(?:\0[^\0]){2}", re.DOTALL)),
)


def encoding_of(start: bytes) -> str | None:
    """Name of the encoding of text that begins with `start`: by a byte order mark, or by ASCII in two bytes each.

    None: there is no sign that it is not plain UTF-8.
    """
    return next((name for name, pattern in _STARTS if pattern.match(start)), None)
