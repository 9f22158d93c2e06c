"""Connection between the training process and a worker: sends Python objects and open file descriptors."""

import contextlib
import pickle
import socket
import struct
from typing import Any, final

_LENGTH = struct.Struct("<QB")  # bytes of the message, and how many descriptors come behind it


@final
class Connection:
    """One end of a connection. Either end sees when the other one is gone.

    Args:
        end: a stream socket; closed by this object.
    """

    def __init__(self, end: socket.socket):
        self._socket = end

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message, and open files that the other end gets descriptors of.

        Raises:
            OSError: when the other end is gone.
        """
        payload = pickle.dumps(message, protocol=5)
        self._socket.sendall(_LENGTH.pack(len(payload), len(descriptors)) + payload)
        if descriptors:
            socket.send_fds(self._socket, [b"."], descriptors)

    def receive(self) -> tuple[Any, list[int]]:
        """The next message, and the descriptors that came with it; waits for it.

        Raises:
            EOFError: when the other end is gone.
        """
        size, count = _LENGTH.unpack(self._exactly(_LENGTH.size))
        payload = self._exactly(size)
        descriptors = list(socket.recv_fds(self._socket, 1, count)[1]) if count else []
        return pickle.loads(payload), descriptors  # noqa: S301 - both ends are loadax, and nobody else has them

    def shut(self) -> None:
        """Tells the other end, and whoever waits at this one, that it is over. From any thread."""
        with contextlib.suppress(OSError):  # it may be over already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the descriptor back, when nobody uses this end any more."""
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
