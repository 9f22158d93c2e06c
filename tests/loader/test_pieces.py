from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadax.loader.pieces import PieceSizes


@given(
    st.integers(0, 10_000), st.integers(0, 32), st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10))), st.integers(1, 16)
)
def test_slices_are_all_rows_each_once_whatever_was_measured(
    rows: int, workers: int, measured: list[tuple[int, float]], count: int
) -> None:
    sizes = PieceSizes(rows, workers)
    for piece in measured:
        sizes.measured(*piece)
    assert sizes.steps >= 1
    for number in (1, count):
        slices = sizes.slices(number)
        assert slices[0][0] == 0
        assert slices[-1][1] == number * max(1, rows)
        assert all(low < high for low, high in slices)
        assert all(one[1] == other[0] for one, other in pairwise(slices))


def test_the_first_batch_waits_for_no_other() -> None:
    assert PieceSizes(100, 4).steps == 1


def test_small_steps_are_read_together_and_large_ones_in_slices() -> None:
    quick, slow = PieceSizes(100, 4), PieceSizes(100, 4)
    quick.measured(100, 1e-5)
    slow.measured(100, 1.0)
    assert (quick.steps > 1, len(quick.slices(1))) == (True, 1)
    assert (slow.steps, len(slow.slices(1)) > 1) == (1, True)
    assert len(PieceSizes(3, 8).slices(1)) <= 3


def test_what_waits_for_a_delay_is_not_cut() -> None:
    """A disk or a network far away: every slice would have the delay anew."""
    sizes, worker = PieceSizes(64, 8), PieceSizes(64, 8)
    for _ in range(20):
        for low, high in sizes.slices(1):
            sizes.measured(high - low, 0.1)
        for low, high in worker.slices(1):
            worker.measured(high - low, (high - low) * 0.002)
    assert len(sizes.slices(1)) == 1
    assert len(worker.slices(1)) == 32
