"""A reverse proxy that counts what passes through it, and spoils what it is told to spoil."""

import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Literal, NamedTuple, final
from urllib.parse import urlsplit

from tests.limits import HANG
from tests.servers.loopback import LoopbackServer

Kind = Literal["status", "reset", "truncate", "corrupt", "delay", "silent", "drip", "together"]
Matches = Callable[[str, str | None], bool]
"""Of a path and the Range header."""

_S3_CODES = {403: "AccessDenied", 404: "NoSuchKey", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
_DRIP_BYTES = 256


@final
@dataclass
class Fault:
    """A rule: which requests are spoilt, and how. Several may meet in one request.

    Args:
        kind: `status`: an error with the XML body that S3 sends; `reset`: the connection breaks in mid-body;
            `truncate`: it ends there, politely; `corrupt`: one byte of the body is another one; `delay`: the answer
            comes later; `silent`: it never comes; `drip`: the body comes in small pieces; `together`: no answer comes
            before so many requests wait for one.
        match: part of the path, or a function of the path and the Range header.
        every: only each such request of those that match, beginning with the first.
        times: how often; None: for ever.
        seconds: that `delay` waits, and that `drip` waits between two pieces.
        status: the number that `status` answers.
        many: requests that `together` waits for.
        hits: how often it happened.
    """

    kind: Kind
    match: str | Matches = ""
    every: int = 1
    times: int | None = None
    seconds: float = 0.1
    status: int = 503
    many: int = 0
    hits: int = 0
    _seen: int = 0
    _all: threading.Event = field(default_factory=threading.Event, repr=False)

    def happens(self, path: str, span: str | None) -> bool:
        """Whether this request is one of them; counts it."""
        if not (self.match in path if isinstance(self.match, str) else self.match(path, span)):
            return False
        self._seen += 1
        happens = (self._seen - 1) % self.every == 0 and (self.times is None or self.hits < self.times)
        self.hits += happens
        if self.hits >= self.many:
            self._all.set()
        return happens

    def gather(self, closing: threading.Event) -> None:
        """Waits for all that shall be there together, or for the end of the proxy."""
        while not self._all.wait(0.05) and not closing.is_set():
            pass


class Exchange(NamedTuple):
    """A request, and what was answered: `sent` bytes of body; status 0 for silence."""

    method: str
    path: str
    range: str | None
    status: int
    sent: int


class _Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@final
class FaultProxy:
    """Stands before the server at `upstream` and passes everything through, but for the faults.

    Args:
        upstream: URL of the server.
        headers: Headers of every answer in which the server leaves them out.

    Attributes:
        url: to use in the server's place.
        hidden: names of headers, in lower case, that are left out of answers.
        log: every exchange, in the order of the answers; written before the answer's last byte, so who has that, sees
            it here.
    """

    def __init__(self, upstream: str, headers: Mapping[str, str] | None = None):
        self.headers: Mapping[str, str] = headers or {}
        self.hidden: set[str] = set()
        address = urlsplit(upstream)
        self.address = (str(address.hostname), int(address.port or 80))
        self.log: list[Exchange] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._server = LoopbackServer(_handler(self))
        self.url = self._server.url
        self.closing = self._server.closing

    def add(self, *faults: Fault) -> None:
        """From now on these happen too."""
        with self._lock:
            self._faults += faults

    def clear(self) -> None:
        """No faults any more, and an empty log."""
        with self._lock:
            self._faults.clear()
            self.log.clear()

    @property
    def requests(self) -> Counter[str]:
        """How many requests each path had."""
        with self._lock:
            return Counter(exchange.path for exchange in self.log)

    @property
    def bytes_sent(self) -> Counter[str]:
        """How many bytes of body each path gave."""
        with self._lock:
            sent: Counter[str] = Counter()
            for exchange in self.log:
                sent[exchange.path] += exchange.sent
            return sent

    def record(self, exchange: Exchange) -> None:
        """Adds to the log."""
        with self._lock:
            self.log.append(exchange)

    def due(self, path: str, span: str | None) -> dict[Kind, Fault]:
        """The faults that happen to this request."""
        with self._lock:
            return {fault.kind: fault for fault in self._faults if fault.happens(path, span)}

    def close(self) -> None:
        """Ends the proxy and its connections; those who wait for an answer get none."""
        self._server.close()


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    @final
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body in one packet

        def setup(self) -> None:
            super().setup()
            self.upstream = http.client.HTTPConnection(*proxy.address, timeout=HANG)

        def finish(self) -> None:
            self.upstream.close()
            super().finish()

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            faults = proxy.due(self.path, self.headers.get("Range"))
            if "silent" in faults:
                self._note(0, 0)
                proxy.closing.wait()
                self.close_connection = True
                return
            if "together" in faults:
                faults["together"].gather(proxy.closing)
            if "delay" in faults:
                proxy.closing.wait(faults["delay"].seconds)
            self._answer(_error(faults["status"].status) if "status" in faults else self._ask(body), faults)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names that http.server looks for

        def _ask(self, body: bytes) -> _Reply:
            """The server's own answer; asked twice, since it may have closed a connection that was long idle."""
            try:
                return self._ask_once(body)
            except (http.client.HTTPException, ConnectionError):
                self.upstream.close()
                return self._ask_once(body)

        def _ask_once(self, body: bytes) -> _Reply:
            self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                self.upstream.putheader(name, value)
            self.upstream.endheaders(body or None)
            response = self.upstream.getresponse()
            content = response.read()
            headers = [
                (name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP | proxy.hidden
            ]
            headers += [item for item in proxy.headers.items() if response.getheader(item[0]) is None]
            length = response.getheader("Content-Length") if self.command == "HEAD" else None
            return _Reply(response.status, [*headers, ("Content-Length", length or str(len(content)))], content)

        def _answer(self, reply: _Reply, faults: dict[Kind, Fault]) -> None:
            body = _flipped(reply.body) if "corrupt" in faults else reply.body
            broken = bool(faults.keys() & {"reset", "truncate"})
            sent = body[: len(body) // 2] if broken else body
            self._note(reply.status, len(sent))
            self.send_response_only(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.end_headers()
            self._send(sent, faults.get("drip"))
            if broken:
                self.close_connection = True
            # to linger for no time is to send a reset, when the last who holds the connection closes it
            if "reset" in faults:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for each in (self.rfile, self.wfile, self.connection):
                    each.close()
                raise ConnectionAbortedError  # http.server would go on to flush what is closed

        def _send(self, body: bytes, drip: Fault | None) -> None:
            pieces = (
                [body] if drip is None else [body[at : at + _DRIP_BYTES] for at in range(0, len(body), _DRIP_BYTES)]
            )
            for number, piece in enumerate(pieces):
                if number and drip is not None:
                    proxy.closing.wait(drip.seconds)
                self.wfile.write(piece)
                self.wfile.flush()

        def _note(self, status: int, sent: int) -> None:
            proxy.record(Exchange(self.command, self.path, self.headers.get("Range"), status, sent))

    return Handler


def _error(status: int) -> _Reply:
    code = _S3_CODES.get(status, "Fault")
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>injected</Message></Error>'
    body = text.encode()
    return _Reply(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))], body)


def _flipped(body: bytes) -> bytes:
    spoilt = bytearray(body)
    if spoilt:
        spoilt[len(spoilt) // 2] ^= 0xFF
    return bytes(spoilt)
