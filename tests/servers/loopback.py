"""An HTTP server on 127.0.0.1, in threads of this process, that ends when it is told to, whoever is still connected."""

import contextlib
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final

from tests.limits import HANG

# clients open dozens of connections at once; what does not fit is tried again by the kernel, a second later
BACKLOG = 256


@final
class LoopbackServer(ThreadingHTTPServer):
    """Serves with `handler`, one thread a connection, from a free port.

    Attributes:
        url: "http://127.0.0.1:port".
        closing: set when the server is about to end: a handler that waits, waits for this.
    """

    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, handler: type[BaseHTTPRequestHandler]):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._accepting = threading.Thread(target=self.serve_forever, args=(0.02,), name="server", daemon=True)
        self._accepting.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                del self._connections[request]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of the test's business; all else is printed, for pytest to show."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Ends the server, every connection and every thread."""
        self.closing.set()
        self.shutdown()
        self._accepting.join()
        self.server_close()
        with self._lock:
            connections = list(self._connections.items())
        for connection, thread in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(HANG)  # it sees that its connection is gone
            assert not thread.is_alive(), "a thread of a test's own server does not end"


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@final
class DeadPort:
    """A port that stays reserved, on which nobody listens: who connects is refused."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Gives the port back."""
        self._socket.close()
