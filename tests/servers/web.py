"""A web server whose answers a test writes: one function for all requests."""

from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple, final

from tests.servers.loopback import LoopbackServer
from tests.servers.ranges import parse_range


class Asked(NamedTuple):
    """A request: path, `Range` and `Authorization`, and how many came before it."""

    path: str
    span: str | None
    authorization: str | None
    number: int

    def cut(self, content: bytes) -> tuple[int, int]:
        """Start and stop of the range in a content; all of it without a range."""
        return parse_range(self.span, len(content)) or (0, len(content))


class Sent(NamedTuple):
    """An answer. Without `length`, it is sent in chunks."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = {}
    length: bool = True


@final
class WebServer:
    """Serves what `answer` says.

    Args:
        answer: From a request to its answer.

    Attributes:
        url: Of the server.
        log: All requests.
    """

    def __init__(self, answer: Callable[[Asked], Sent]):
        self.log: list[Asked] = []
        log = self.log

        @final
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_GET(self) -> None:
                asked = Asked(self.path, self.headers["Range"], self.headers["Authorization"], len(log))
                log.append(asked)
                sent = answer(asked)
                self.send_response(sent.status)
                for name, value in sent.headers.items():
                    self.send_header(name, value)
                length = ("Content-Length", str(len(sent.content)))
                self.send_header(*(length if sent.length else ("Transfer-Encoding", "chunked")))
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.wfile.write(sent.content if sent.length else _chunks(sent.content))
                self.wfile.flush()

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        self._server = LoopbackServer(Handler)
        self.url = self._server.url

    def close(self) -> None:
        """Ends the server and its connections."""
        self._server.close()


def _chunks(content: bytes) -> bytes:
    half = len(content) // 2
    chunks = [part for part in (content[:half], content[half:]) if part]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in chunks) + b"0\r\n\r\n"
