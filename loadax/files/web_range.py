"""Reads a byte range from a web server that sends whole files, or answers without `Content-Length`."""

import http.client
import re
import urllib.error
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from loadax.core.formatting import size_text
from loadax.errors import StorageError
from loadax.files.byte_ranges import ByteRange, FileInfo
from loadax.files.object_stores import basic_authorization
from loadax.files.web_request import open_web

# Largest file in bytes that is read whole where a server sends no ranges.
MOST_BYTES = 4 << 20

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class WebRange(NamedTuple):
    """The answer of a web server.

    Args:
        info: Size and generation of the file; None: the range begins behind the end of the file.
        content: Bytes of the range, fewer at the end of the file.
        is_part_of_sent: Whether the server sent more of the file than the range.
    """

    info: FileInfo | None
    content: bytes
    is_part_of_sent: bool


def read_web_range(url: str, start: int, stop: int) -> WebRange:
    """Reads the bytes `[start, stop)` of a file.

    Raises:
        FileNotFoundError: When the file does not exist.
        OSError: When the server does not answer, or answers with an error.
        StorageError: When it sends a large file whole.
    """
    plain, authorization = basic_authorization(url)
    headers = {"Range": f"bytes={start}-{stop - 1}", **authorization}
    try:
        with open_web(plain, headers) as response:
            return _answer(response, url, start, stop)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            return WebRange(None, b"", is_part_of_sent=False)
        if error.code in (404, 410):
            raise FileNotFoundError(url) from None
        raise OSError(f"error: status code: {error.code} {error.reason}") from None
    except http.client.HTTPException as error:
        raise OSError(
            f"error: the answer was cut short: {type(error).__name__}"
        ) from error


def _answer(response: Any, url: str, start: int, stop: int) -> WebRange:
    generation = (
        response.headers["ETag"] or _changed(response.headers["Last-Modified"])
    ).encode()
    declared = _CONTENT_RANGE.fullmatch(response.headers["Content-Range"] or "")
    if response.status == 206 and declared is not None and int(declared[1]) == start:
        return WebRange(
            FileInfo(int(declared[2]), generation),
            response.read(stop - start),
            is_part_of_sent=False,
        )
    size = int(response.headers["Content-Length"] or 0)
    if size > MOST_BYTES:
        content = b""
    else:
        content = response.read(MOST_BYTES + 1)
    if max(size, len(content)) > MOST_BYTES:
        raise StorageError(
            f"{ByteRange(url, start, stop)}: the server ignores Range requests and "
            f"sends whole files, which are read up to {size_text(MOST_BYTES)} only; "
            "use a server that supports Range requests"
        )
    # one byte is read for the size of a file
    part_of_sent = len(content) > stop - start > 1
    return WebRange(
        FileInfo(len(content), generation), content[start:stop], part_of_sent
    )


def _changed(header: str | None) -> str:
    """Time of the last change as obstore's answers have it; empty if the server sends none."""
    try:
        return str(parsedate_to_datetime(header).timestamp()) if header else ""
    except ValueError:
        return ""
