"""Which requests are late, which gaps are joined: by measured delays."""

import pytest

from loadax.files.byte_ranges import ByteRange, joined
from loadax.files.delays import CAUTIOUS, NARROWEST, WIDEST, Delays, gap_worth_reading


def measured(size: int, seconds: float, number: int = 256, latency: float = 0.1) -> Delays:
    delays = Delays()
    for answer in range(number):
        delays.answered(answer * 0.01, latency, latency + seconds, size)
    return delays


@pytest.mark.parametrize("width", [1, 64, 256])
@pytest.mark.parametrize("bandwidth", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("latency", [0.001, 0.02, 0.1])
def test_reading_the_gap_takes_less_than_a_request(latency: float, bandwidth: float, width: int) -> None:
    gap = gap_worth_reading(latency, bandwidth, width)
    assert NARROWEST <= gap <= WIDEST
    # One of `width` places takes `latency` for a request, or for the gap at its share of the bandwidth.
    seconds = gap / (bandwidth / width)
    assert gap == NARROWEST or seconds <= latency
    assert gap == WIDEST or gap + 1 >= latency * bandwidth / width


def test_gap_is_cautious_before_anything_is_measured() -> None:
    assert Delays().gap(64) == CAUTIOUS
    assert measured(1024, 0.0, number=63).gap(64) == CAUTIOUS
    assert measured(1024, 0.0).gap(64) == NARROWEST  # 0.1 MB/s were seen
    assert measured(1 << 20, 0.01).gap(64) > CAUTIOUS  # 100 MB/s


def test_rows_far_apart_are_read_alone_and_near_ones_together() -> None:
    rows = [ByteRange("a", start, start + 1024) for start in (0, 1024, 3000, 90_000)]
    wholes = [whole for whole, _ in joined(rows, measured(1024, 0.0).gap(64))]
    assert wholes == [ByteRange("a", 0, 2048), rows[2], rows[3]]
    wholes = [whole for whole, _ in joined(rows, measured(1 << 20, 0.01).gap(64))]
    assert wholes == [ByteRange("a", 0, 91_024)]


def test_late_is_what_takes_longer_than_nearly_all_of_its_size() -> None:
    delays = measured(1 << 20, 0.01)
    assert not delays.is_late(0.1, 0)
    assert delays.is_late(0.101, 0)
    assert not delays.is_late(0.115, 1 << 20)
    assert delays.is_late(0.13, 1 << 20)
    assert not Delays().is_late(100.0, 0)


def test_stragglers_do_not_make_others_seem_early() -> None:
    delays = Delays()
    for answer in range(256):
        delays.answered(answer * 0.01, 5.0 if answer % 20 == 0 else 0.1, 5.0, 1024)
    assert delays.is_late(0.31, 1024)
    assert not delays.is_late(0.29, 1024)


def test_few_requests_are_sent_twice() -> None:
    delays = measured(1024, 0.0, number=1000)
    assert sum(delays.may_repeat() for _ in range(1000)) == 20
