"""Connection between the training process and a worker: sends Python objects and open file descriptors."""

import contextlib
import pickle
import socket
import struct
from typing import Any, final

_LENGTH = struct.Struct("<QB")  # bytes of the message, and number of descriptors that follow


@final
class Connection:
    """One end of a connection. Detects when the other end is gone.

    Args:
        end: Stream socket; closed by this object.
    """

    def __init__(self, end: socket.socket):
        self._socket = end

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message and file descriptors.

        Raises:
            OSError: If the other end is gone.
        """
        payload = pickle.dumps(message, protocol=5)
        self._socket.sendall(_LENGTH.pack(len(payload), len(descriptors)) + payload)
        if descriptors:
            socket.send_fds(self._socket, [b"."], descriptors)

    def receive(self) -> tuple[Any, list[int]]:
        """Waits for the next message and its file descriptors.

        Raises:
            EOFError: If the other end is gone.
        """
        size, count = _LENGTH.unpack(self._exactly(_LENGTH.size))
        payload = self._exactly(size)
        descriptors = list(socket.recv_fds(self._socket, 1, count)[1]) if count else []
        return pickle.loads(payload), descriptors  # noqa: S301 - both ends are loadax, and private

    def shutdown(self) -> None:
        """Shuts the connection down, which wakes up threads that wait at either end. Thread-safe."""
        with contextlib.suppress(OSError):  # it may be shut down already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        received = bytearray(size)
        view, done = memoryview(received), 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done:])
            except ConnectionError as error:
                raise EOFError from error
            if not count:
                raise EOFError
            done += count
        return received
