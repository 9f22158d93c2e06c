"""Requests of a process: urgent ones first, late ones twice, refused ones within what the server allows."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from loadax.errors import StorageError
from loadax.files import attempts, requests as engine
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import Files
from loadax.files.remote import RemoteFiles
from loadax.files.requests import Request, Requests
from tests.limits import HANG
from tests.servers.web import Asked, Sent, WebServer

CONTENT = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
PLACES = 64  # requests in flight at first


@pytest.fixture(autouse=True)
def own_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests that have measured nothing yet."""
    monkeypatch.setattr(engine, "_by_process", {})
    yield
    for requests in engine._by_process.values():
        requests.close()


def part(asked: Asked) -> Sent:
    start, stop = asked.cut(CONTENT)
    return Sent(206, CONTENT[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(CONTENT)}", "ETag": '"x"'})


def rows(url: str, number: int, seed: int = 0) -> list[ByteRange]:
    starts = np.random.default_rng(seed).integers(0, len(CONTENT) - 1024, number).tolist()
    return [ByteRange(f"{url}/f.bin", start, start + 1024) for start in starts]


def read_each(files: RemoteFiles, ranges: list[ByteRange]) -> None:
    """Reads each range by a request of its own and compares the bytes."""
    answers = files.wait(files.begin(ranges, urgent=True), ranges)
    for wanted, answer in zip(ranges, answers, strict=True):
        assert answer is not None
        assert answer.content == CONTENT[wanted.start : wanted.stop]


class Gate:
    """Requests that wait until they are let through; the order in which they were sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self._open = threading.Event()

    def send(self, item: object) -> object:
        self.sent.append(item)
        assert self._open.wait(HANG)
        return item

    def open(self) -> None:
        self._open.set()

    def request(self, item: object, urgent: bool = True) -> Request:
        return Request(self.send, item, "server", 1, urgent, is_known=True)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class TestQueue:
    def test_urgent_requests_go_before_those_ahead(self) -> None:
        requests, gate = Requests(), Gate()
        ahead = requests.begin([gate.request(("ahead", number), urgent=False) for number in range(300)])
        wait_until(lambda: len(gate.sent) == PLACES)
        urgent = requests.begin([gate.request(("urgent", number)) for number in range(3)])
        hurried = threading.Thread(
            target=requests.wait, args=([ahead[90], ahead[0]], HANG)
        )  # the second is sent already
        hurried.start()
        wait_until(lambda: ahead[90].waits != ())
        gate.open()
        hurried.join(HANG)
        assert requests.wait([*ahead, *urgent], HANG)
        following = [("urgent", 0), ("urgent", 1), ("urgent", 2), ("ahead", 90)]
        assert set(gate.sent[PLACES : 2 * PLACES]) >= set(following)
        assert len(gate.sent) == 303

    def test_cancelled_requests_are_not_sent(self) -> None:
        requests, gate = Requests(), Gate()
        begun = requests.begin([gate.request(number, urgent=number % 2 == 0) for number in range(200)])
        wait_until(lambda: len(gate.sent) == PLACES)
        for each in begun:
            each.cancel()
        last = requests.begin([gate.request("last", urgent=False)])
        gate.open()
        assert requests.wait(last, HANG)
        assert last[0].result() == "last"
        assert len(gate.sent) == PLACES + 1

    def test_many_threads_share_one_budget(self) -> None:
        busy, most, lock = 0, 0, threading.Lock()

        def send(item: object) -> object:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
            time.sleep(0.01)
            with lock:
                busy -= 1
            return item

        requests = Requests()
        answers: list[Any] = []

        def read() -> None:
            asked = [Request(send, number, "server", 1, True, is_known=True) for number in range(64)]
            begun = requests.begin(asked)
            assert requests.wait(begun, HANG)
            answers.append([each.result() for each in begun])

        readers = [threading.Thread(target=read) for _ in range(8)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(HANG)
        assert answers == [[*range(64)]] * 8
        assert PLACES // 2 < most <= 1.25 * PLACES  # it may have tried more

    def test_error_of_a_program_is_its_own(self) -> None:
        def send(_: object) -> object:
            raise TypeError("mine")

        requests = Requests()
        (begun,) = requests.begin([Request(send, "item", "server", 1, True, is_known=True)])
        assert requests.wait([begun], HANG)
        with pytest.raises(TypeError, match="mine"):
            begun.result()

    def test_wait_ends_with_the_first_error_or_the_time(self) -> None:
        def send(item: object) -> object:
            if item == "wrong":
                raise TypeError("mine")
            return gate.send(item)

        requests, gate = Requests(), Gate()
        asked = [Request(send, item, "server", 1, True, is_known=True) for item in ("right", "wrong")]
        begun = requests.begin(asked)
        assert requests.wait(begun, HANG)
        assert [each.done() for each in begun] == [False, True]
        assert not requests.wait(begun[:1], 0.01)
        gate.open()
        assert requests.wait(begun[:1], HANG)
        assert begun[0].result() == "right"

    def test_cancelling_ends_a_wait(self) -> None:
        requests, gate = Requests(), Gate()
        begun = requests.begin([gate.request("item")])
        waiting = threading.Thread(target=requests.wait, args=(begun, 2 * HANG))
        waiting.start()
        wait_until(lambda: begun[0].waits != ())
        begun[0].cancel()
        waiting.join(HANG)
        assert not waiting.is_alive()
        with pytest.raises(CancelledError):
            begun[0].result()
        gate.open()


class TestFaults:
    @pytest.mark.parametrize("spoilt", ["refused", "failed", "cut", "late"])
    def test_equal_bytes_when_some_requests_are_spoilt(self, spoilt: str) -> None:
        seen: set[str | None] = set()

        def answer(asked: Asked) -> Sent:
            sent = part(asked)
            if asked.number % 50 != 7 or asked.span in seen:
                return sent
            seen.add(asked.span)
            if spoilt == "late":
                time.sleep(0.3)
                return sent
            if spoilt == "cut":
                return Sent(206, sent.content[:100], {**sent.headers, "Content-Length": "1024"})
            return Sent(503 if spoilt == "refused" else 500)

        with closing(WebServer(answer)) as server:
            read_each(RemoteFiles(), rows(server.url, 600))
            assert len(seen) >= 10
            assert len(server.log) <= 640

    def test_late_request_is_sent_again_and_the_first_answer_wins(self) -> None:
        late = 5.0
        spans: list[str | None] = []
        is_over = threading.Event()

        def answer(asked: Asked) -> Sent:
            if asked.number == 300:
                spans.append(asked.span)
                is_over.wait(late)
            time.sleep(0.05)
            return part(asked)

        with closing(WebServer(answer)) as server:
            files, start = RemoteFiles(), time.monotonic()
            read_each(files, rows(server.url, 400))
            assert time.monotonic() - start < late
            is_over.set()
            assert [asked.span for asked in server.log].count(spans[0]) >= 2
            assert len(server.log) <= 400 * 1.02 + 1

    def test_throttled_server_refuses_few_requests(self) -> None:
        """At 300 requests a second, by the clock of the server: at most 5 % after the first seconds."""
        rate, seconds = 300, 8
        lock = threading.Lock()
        counts: dict[int, list[int]] = {}
        begun = time.monotonic()

        def answer(asked: Asked) -> Sent:
            with lock:
                count = counts.setdefault(int(time.monotonic() - begun), [0, 0])
                is_refused = count[0] >= rate
                count[is_refused] += 1
            time.sleep(0.02)
            return Sent(503) if is_refused else part(asked)

        with closing(WebServer(answer)) as server:
            files = RemoteFiles()
            ranges = rows(server.url, rate * seconds)
            read_each(files, ranges)
        settled = [counts[second] for second in sorted(counts)[3:-1]]
        answered, refused = np.sum(settled, axis=0)
        assert refused <= 0.05 * (answered + refused)
        assert answered >= 0.9 * rate * len(settled)

    def test_server_that_refuses_everything_ends_the_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attempts, "LIMITED", (0.01, 0.02))
        with closing(WebServer(lambda _: Sent(503))) as server:
            with pytest.raises(StorageError, match=r"f\.bin, bytes .*: the server answered 503 .*the server limits"):
                Files().read(rows(server.url, 2))
            assert len(server.log) <= 6


class TestMissingFiles:
    def test_one_that_was_never_seen_is_requested_once(self) -> None:
        with closing(WebServer(lambda _: Sent(404))) as server:
            with pytest.raises(StorageError, match=r"f\.bin, bytes .*: there is no such file"):
                Files().read(rows(server.url, 1))
            assert len(server.log) == 1

    def test_one_that_was_read_before_is_requested_once_more(self) -> None:
        missing = {1}
        with closing(WebServer(lambda asked: Sent(404) if asked.number in missing else part(asked))) as server:
            files, (wanted,) = Files(), rows(server.url, 1)
            for number in (1, 3):  # the second time it is missing once, and comes back
                assert files.read([wanted]) == [CONTENT[wanted.start : wanted.stop]]
                assert len(server.log) == number


def test_error_of_a_wait_cancels_the_others() -> None:
    """An error of one range takes the others, which were not sent, out of the queue."""
    release = threading.Event()

    def answer(asked: Asked) -> Sent:
        if asked.path == "/denied":
            return Sent(403)
        release.wait(HANG)
        return part(asked)

    with closing(WebServer(answer)) as server:
        files = RemoteFiles()
        ranges = [ByteRange(f"{server.url}/denied", 0, 9), *rows(server.url, 200)]
        begun = files.begin(ranges, urgent=True)
        with pytest.raises(StorageError, match="denied, bytes 0 to 8: the server answered 403"):
            files.wait(begun, ranges)
        assert sum(isinstance(each.exception(), CancelledError) for each in begun) >= 200 - PLACES
        assert len(server.log) <= PLACES + 1
        release.set()
