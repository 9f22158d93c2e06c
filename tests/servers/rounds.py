"""A proxy that counts requests and rounds: how many requests were one after the other."""

import http.client
import time
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple, final
from urllib.parse import urlsplit

from tests.limits import HANG
from tests.servers.loopback import LoopbackServer


class Timed(NamedTuple):
    """A request: its path, the status of the answer, and the times at which it came and was answered."""

    path: str
    status: int
    began: float
    ended: float


@final
class RoundsProxy:
    """Stands before the server at `upstream`, and answers after `delay` seconds, so that requests of a round overlap.

    Attributes:
        url: to use in the server's place.
        log: all requests, in the order of the answers.
    """

    def __init__(self, upstream: str, delay: float):
        address = urlsplit(upstream)
        self.log: list[Timed] = []
        log = self.log

        @final
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self) -> None:
                began = time.monotonic()
                upstream = http.client.HTTPConnection(str(address.hostname), int(address.port or 80), timeout=HANG)
                upstream.request(self.command, self.path, headers=dict(self.headers))
                answer = upstream.getresponse()
                body = answer.read()
                upstream.close()
                time.sleep(max(0.0, began + delay - time.monotonic()))
                log.append(Timed(self.path, answer.status, began, time.monotonic()))
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "server", "date", "content-length"):
                        self.send_header(name, value)
                length = len(body) if self.command == "GET" else int(answer.getheader("Content-Length") or 0)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        self._server = LoopbackServer(Handler)
        self.url = self._server.url

    @property
    def rounds(self) -> int:
        """Most requests of which each came after the answer of the one before."""
        count = 0
        last = 0.0
        for request in sorted(self.log, key=lambda one: one.ended):
            if request.began >= last:
                count += 1
                last = request.ended
        return count

    def close(self) -> None:
        """Ends the proxy and its connections."""
        self._server.close()
