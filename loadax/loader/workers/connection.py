"""Connection between the training process and a worker: sends Python objects and open file descriptors."""

import contextlib
import os
import pickle
import socket
from multiprocessing import connection
from typing import Any, final


@final
class Connection:
    """One end of a connection. Detects when the other end is gone.

    Args:
        end: Stream socket; closed by this object.
    """

    def __init__(self, end: socket.socket):
        # else the end follows socket.setdefaulttimeout, and reads fail instead of waiting
        end.setblocking(True)
        self._socket = end
        self._messages = connection.Connection(os.dup(end.fileno()))

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message and file descriptors.

        Raises:
            OSError: If the other end is gone.
        """
        self._messages.send_bytes(
            pickle.dumps((message, len(descriptors)), protocol=5)
        )
        if descriptors:
            socket.send_fds(self._socket, [b"."], descriptors)

    def receive(self) -> tuple[Any, list[int]]:
        """Waits for the next message and its file descriptors.

        Raises:
            EOFError: If the other end is gone.
        """
        try:
            received = self._messages.recv_bytes()
        except (
            OSError,
            TypeError,
        ) as error:  # in the middle of a message; or closed by another thread meanwhile
            raise EOFError from error
        message, count = pickle.loads(received)  # noqa: S301 - both ends are loadax, and private
        return message, list(
            socket.recv_fds(self._socket, 1, count)[1]
        ) if count else []

    def shutdown(self) -> None:
        """Shuts the connection down, which wakes up threads that wait at either end. Thread-safe."""
        with contextlib.suppress(OSError):  # it may be shut down already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket."""
        self._messages.close()
        self._socket.close()
