"""Removes passwords, tokens and signatures from locations before they are shown, and escapes unprintable characters.

All code that shows a path or URL (errors, notes, `repr`, traces, explanations) applies `redact` to it. Messages of the
logger `loadax` are redacted here.
"""

import logging
import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>`]+")
# Before the host; or up to the last "@", if what is in the place of a port is none, but begins an unescaped password.
_CREDENTIALS = re.compile(
    r"(://)(?:[^/?#@]*(?:@[^/?#@]*)*|[^/?#@:]*:(?!\d*(?:[/?#]|$))[^\s]*)@"
)
_QUERY = re.compile(r"(\?|%3[Ff])([^|]*)")
_SEPARATOR = re.compile(r"([&;#]|%26|%3[Bb])")
_EQUALS = re.compile(r"(=|%3[Dd])")
# Query parameters that are not secret; any other may be.
_HARMLESS = re.compile(
    "alt|download|format|generation|page|part|raw|ref|revision|version|versionid"
)
_HEADER = re.compile(
    r"(?i)(\b(?:proxy-)?authorization\b['\"]?\s*[:=]\s*['\"]?)(?:(?:basic|bearer|token)\s+)?[^\s'\",;\]}]+"
)
_PUNCTUATION = ".,:;)]}"  # punctuation that ends a sentence after a URL
# Control characters, which terminals obey, marks that turn the direction of text, and surrogates, which stand for bytes
# of file names that are not UTF-8 and can't be printed or logged.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Replaces each secret
HIDDEN = "…"


def redact(text: str) -> str:
    r"""Removes user names, passwords and all but harmless query values from the URLs in a text, and makes it printable.

    Examples:
        >>> from loadax.errors import redact
        >>> redact("caf\udce9.csv\x1b[2J")  # a name of Latin-1, and an escape sequence
        'caf\\xe9.csv\\x1b[2J'
        >>> redact("http://me:secret@host/a.npy?token=secret&version=2: there is no such file")
        'http://…@host/a.npy?token=…&version=2: there is no such file'
    """
    if not text.isprintable():
        text = _UNPRINTABLE.sub(_escape, text)
    if "://" in text:
        text = _URL.sub(lambda match: _redact_url(match[0]), text)
    if "uthorization" in text or "AUTHORIZATION" in text:
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
    return text


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    # as Python decodes a byte of a file name
    code -= 0xDC00 if 0xDC80 <= code <= 0xDCFF else 0
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg = redact(record.getMessage())
    record.args = ()
    return True


logging.getLogger("loadax").addFilter(_redact_record)


def redacted(error: Exception) -> Exception:
    """An error of another library without secrets: the error itself, or a ValueError with the redacted message."""
    text = redact(str(error))
    if text == str(error):
        return error
    return ValueError(text)


def _redact_url(url: str) -> str:
    stripped = url.rstrip(_PUNCTUATION)
    return (
        _QUERY.sub(_redact_query, _CREDENTIALS.sub(rf"\1{HIDDEN}@", stripped))
        + url[len(stripped) :]
    )


def _redact_query(match: re.Match[str]) -> str:
    parts = _SEPARATOR.split(match[2])  # items and separators, alternating
    return match[1] + "".join(
        _redact_item(part) if index % 2 == 0 else part
        for index, part in enumerate(parts)
    )


def _redact_item(item: str) -> str:
    # and the sign and text of its value, if it has one
    name, *value = _EQUALS.split(item, maxsplit=1)
    if not item or _HARMLESS.fullmatch(name.lower()):
        return item
    if value:
        return f"{name}{value[0]}{HIDDEN}"
    return HIDDEN
