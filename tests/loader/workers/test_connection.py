"""File descriptors arrive with their messages, and either end detects that the other is gone."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from loadax.loader.workers.connection import Connection
from tests.limits import HANG


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    one, other = (Connection(each) for each in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_open_files_come_along(ends: tuple[Connection, Connection]) -> None:
    pairs = [os.pipe() for _ in range(2)]
    ends[0].send("look", tuple(write for _, write in pairs))
    ends[0].send("next")
    message, descriptors = ends[1].receive()
    assert (message, len(descriptors)) == ("look", 2)
    assert ends[1].receive() == ("next", [])
    for number, ((read, write), arrived) in enumerate(zip(pairs, descriptors, strict=True)):
        assert arrived != write
        os.write(arrived, bytes([number]))
        assert os.read(read, 1) == bytes([number])
        for each in (read, write, arrived):
            os.close(each)


@pytest.mark.parametrize("begun", [b"", b"\0", b"\0\0\0\x05abc"])
def test_an_end_that_is_gone_is_seen_also_in_the_middle_of_a_message(begun: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Connection(ours)
    theirs.sendall(begun)
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(OSError, match=r"."):
        channel.send("hello")
    channel.close()


def test_an_end_that_went_with_unread_messages_is_seen_too(ends: tuple[Connection, Connection]) -> None:
    ends[0].send("never read")
    ends[1].close()
    with pytest.raises(EOFError):
        ends[0].receive()


def test_shut_frees_who_waits(ends: tuple[Connection, Connection]) -> None:
    freed = threading.Event()

    def wait() -> None:
        with pytest.raises(EOFError):
            ends[0].receive()
        freed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    ends[0].shutdown()
    assert freed.wait(HANG)
    thread.join(HANG)
    with pytest.raises(EOFError):
        ends[1].receive()
    ends[0].shutdown()
    ends[0].close()
    ends[0].shutdown()


def test_end_that_another_thread_closes_is_gone(
    ends: tuple[Connection, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even between Python's check of its handle and its read."""
    one, _ = ends
    monkeypatch.setattr(one._messages, "_check_closed", lambda: None)
    one.close()
    with pytest.raises(EOFError):
        one.receive()
