"""A folder over HTTP, with byte ranges: what object stores and web servers do, and Python's own server does not."""

import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import final
from urllib.parse import unquote, urlsplit

from tests.servers.loopback import LoopbackServer

_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")


@final
class RangeServer:
    """Serves the files below `folder`, read only and not listed.

    Attributes:
        url: of the folder.
    """

    def __init__(self, folder: Path):
        root = folder.resolve()

        @final
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1  # head and body in one packet

            def do_GET(self) -> None:
                serve_file(self, root)

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        self._server = LoopbackServer(Handler)
        self.url = self._server.url

    def close(self) -> None:
        """Ends the server and its connections."""
        self._server.close()


def serve_file(handler: BaseHTTPRequestHandler, root: Path) -> None:
    """Answers one GET or HEAD."""
    path = (root / unquote(urlsplit(handler.path).path).lstrip("/")).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        return answer(handler, 404, {}, b"not found")
    size = path.stat().st_size
    tag = f'"{path.stat().st_mtime_ns:x}-{size:x}"'
    headers = {"Accept-Ranges": "bytes", "ETag": tag, "Content-Type": "application/octet-stream"}
    if handler.headers.get("If-None-Match") == tag:
        return answer(handler, 304, headers, b"")
    if handler.headers.get("If-Match", tag) not in {tag, "*"}:
        return answer(handler, 412, headers, b"")
    span = parse_range(handler.headers.get("Range"), size)
    if span is None:
        return answer(handler, 200, headers, path.read_bytes())
    start, stop = span
    if start >= stop:
        return answer(handler, 416, {**headers, "Content-Range": f"bytes */{size}"}, b"")
    with path.open("rb") as file:
        file.seek(start)
        return answer(
            handler, 206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}, file.read(stop - start)
        )


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes asked for, from start to before stop; None for all: no range, or one that means nothing."""
    match = _RANGE.fullmatch(header or "")
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        return max(size - int(suffix), 0), size
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last) + 1, size) if last else size


def answer(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
    """Sends a whole reply; on HEAD without its body."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
    handler.wfile.flush()
