"""Piece sizes follow from measured times, here of a simulated machine."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax import Dataloader, from_arrays
from loadax.loader.execution.piece_size import PieceSizes
from loadax.loader.metrics.stages import StageClock
from loadax.loader.metrics.stats import Timing
from loadax.sharding import data_parallel
from tests.clocks import Machine
from tests.work_counts import lines_of

ELSEWHERE = 0.012
"""CPU seconds of a piece that another process reads."""

Spend = Callable[[int], None]
"""Spends the time that so many rows take."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def took(spend: Spend, rows: int) -> Timing:
    clock = StageClock()
    with clock("transform"):
        spend(rows)
    return clock.timing()


def measured(sizes: PieceSizes, spend: Spend, active: int, steps: int = 20) -> PieceSizes:
    """The sizes after some steps that were cut as they say."""
    for _ in range(steps):
        for low, high in sizes.pieces(1, active):
            sizes.measured(high - low, took(spend, high - low))
    return sizes


def seconds_of_pieces(sizes: PieceSizes, active: int, rows: int, each: float) -> list[float]:
    """Processor seconds of the pieces that come next, where a row takes `each` of them."""
    count = sizes.steps
    assert rows == sizes.pieces(count, active)[-1][1]
    return [count * (high - low) * each for low, high in sizes.pieces(count, active)]


@given(
    st.integers(0, 10_000),
    st.integers(0, 32),
    st.integers(1, 32),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10), st.floats(0, 10))),
    st.integers(1, 16),
    st.integers(0, 9),
)
def test_slices_are_all_rows_each_once_whatever_was_measured(
    rows: int,
    workers: int,
    active: int,
    isolated: bool,
    pieces: list[tuple[int, float, float]],
    count: int,
    places: int,
) -> None:
    sizes = PieceSizes(rows, workers, ELSEWHERE * isolated, lambda: places)
    for number, seconds, processor_seconds in pieces:
        sizes.measured(number, Timing(seconds, read_cpu=processor_seconds))
    assert sizes.steps >= 1
    for steps in (1, count):
        cut = sizes.pieces(steps, active)
        assert len(cut) <= max(1, 4 * active + places)
        assert places == 0 or len(cut) == max(1, rows) or len(cut) % places == 0
        assert cut[0][0] == 0
        assert cut[-1][1] == max(1, rows)
        assert all(low < high for low, high in cut)
        assert all(one[1] == other[0] for one, other in pairwise(cut))


@pytest.mark.parametrize("isolated", [False, True])
def test_the_first_batch_waits_for_no_other(isolated: bool) -> None:
    sizes = PieceSizes(100, 4, ELSEWHERE * isolated)
    assert (sizes.steps, sizes.pieces(1, 4)) == (1, [(0, 100)])


def test_small_steps_are_read_together_and_large_ones_in_slices() -> None:
    quick, slow = PieceSizes(100, 4), PieceSizes(100, 4)
    quick.measured(100, Timing(1e-5))
    slow.measured(100, Timing(1.0))
    assert (quick.steps > 1, len(quick.pieces(1, 4))) == (True, 1)
    assert (slow.steps, len(slow.pieces(1, 4)) > 1) == (1, True)
    assert len(PieceSizes(3, 8).pieces(1, 8)) <= 3


@pytest.mark.parametrize("each", [1e-6, 1e-5, 1e-4, 2e-4, 2.9e-4, 1e-3])
def test_steps_are_read_together_or_cut_but_never_both(each: float, machine: Machine) -> None:
    sizes = measured(PieceSizes(10, 4), lambda rows: machine.share(rows * each, 1), 4)
    assert sizes.steps == max(1, min(16, 1 << (int(0.004 / (10 * each) + 1e-6) | 1).bit_length() - 1))
    assert sizes.steps == 1 or len(sizes.pieces(1, 4)) == 1


@pytest.mark.parametrize("among", [2, 4])
@pytest.mark.parametrize("isolated", [False, True])
def test_as_many_steps_are_read_together_on_a_busy_machine(isolated: bool, among: int, machine: Machine) -> None:
    def work(rows: int, programs: int) -> None:
        machine.share(rows * 5e-5, programs)

    idle, busy = (measured(PieceSizes(10, 4, isolated), partial(work, programs=count), 4) for count in (1, among))
    assert idle.steps == busy.steps > 1


def test_one_thread_has_few_slices_until_more_are_tried(machine: Machine) -> None:
    sizes = measured(PieceSizes(64, 8), lambda rows: machine.share(rows * 0.01, 1), active=1)
    assert [len(sizes.pieces(1, active)) for active in (1, 2, 8)] == [4, 8, 32]


def test_what_waits_for_a_delay_is_not_cut(machine: Machine) -> None:
    """A disk or a network far away: every slice would have the delay anew."""
    sizes, worker = PieceSizes(64, 8), PieceSizes(64, 8)
    assert len(measured(sizes, lambda _: machine.sleep(0.1), 8).pieces(1, 8)) == 1
    assert len(measured(worker, lambda rows: machine.sleep(rows * 0.002), 8).pieces(1, 8)) == 32


@pytest.mark.parametrize("latency", [0.0, 0.02, 0.1])
def test_a_wait_for_bytes_that_are_under_way_cuts_nothing(latency: float, machine: Machine) -> None:
    """They were requested for many steps together: each piece waits for the rest of the time, whatever its rows."""
    sizes = PieceSizes(256, 4)
    cuts = []
    for step in range(40):
        arrives = machine.now + latency * (step % 2)
        for low, high in sizes.pieces(1, 4):
            began = machine.now
            machine.sleep((high - low) / 256 * max(0.0, arrives - began))
            waited = machine.now - began
            timing = took(lambda rows: machine.share(3e-4 + rows * 3e-5, 1), high - low)
            sizes.measured(high - low, timing._replace(read=waited, under_way=waited))
        cuts.append(len(sizes.pieces(1, 4)))
    assert set(cuts[4:]) <= {3, 4, 5}  # of two milliseconds


@pytest.mark.parametrize("each", [1e-6, 1e-5, 1e-4])
def test_sizes_settle_within_three_steps_behind_a_latency(each: float, machine: Machine) -> None:
    """No step pays 100 ms sixteen times, and the third one is as long as those after it."""

    def request(rows: int) -> None:
        machine.sleep(0.1)
        machine.share(rows * each, 1)

    sizes, cuts = PieceSizes(256, 4), []
    for _ in range(8):
        cuts.append(len(sizes.pieces(1, 4)))
        measured(sizes, request, 4, steps=1)
    assert cuts[0] == 1
    assert cuts[1] <= 2
    assert cuts[2:] == [1] * 6


@pytest.mark.parametrize("among", [1, 2, 4])
@pytest.mark.parametrize("each", [2e-5, 1e-4, 1.5e-4, 2.5e-4, 5e-4, 1e-3])
def test_a_piece_of_a_worker_process_takes_it_some_ten_milliseconds_however_busy_the_machine(
    each: float, among: int, machine: Machine
) -> None:
    sizes = measured(PieceSizes(64, 4, elsewhere=ELSEWHERE), lambda rows: machine.share(rows * each, among), 4)
    assert all(0.006 <= seconds <= 0.018 for seconds in seconds_of_pieces(sizes, 4, 64, each))


def test_a_batch_of_a_few_milliseconds_is_one_piece_of_a_worker_process_and_several_of_a_thread(
    machine: Machine,
) -> None:
    """64 rows of a function in pure Python, as in the benchmark `transform`; with no other program, and with three."""
    for among, of_thread in ((1, 5), (4, 16)):

        def work(rows: int, among: int = among) -> None:
            machine.share(rows * 1.5e-4, among)

        assert len(measured(PieceSizes(64, 4, elsewhere=ELSEWHERE), work, 4).pieces(1, 4)) == 1
        assert len(measured(PieceSizes(64, 4), work, 4).pieces(1, 4)) == of_thread


def test_worker_processes_share_a_dear_batch(machine: Machine) -> None:
    for workers in (4, 16):
        sizes = measured(
            PieceSizes(64, workers, elsewhere=ELSEWHERE), lambda rows: machine.share(rows * 0.05, 1), workers
        )
        assert (sizes.steps, len(sizes.pieces(1, workers))) == (1, min(4 * workers, 64))


def test_worker_processes_share_a_batch_whose_rows_wait(machine: Machine) -> None:
    """Files behind a network: they take next to no processor time.

    One read task of many steps would hold up all of these steps.
    """

    def wait(rows: int) -> None:
        machine.share(rows * 1e-5, 1)
        machine.sleep(rows * 0.02)

    sizes = measured(PieceSizes(64, 4, elsewhere=ELSEWHERE), wait, 4)
    assert (sizes.steps, len(sizes.pieces(1, 4))) == (1, 16)


@pytest.mark.processes
@pytest.mark.parametrize(("target", "cut"), [(1e-9, True), (1e9, False)])
def test_a_loader_with_worker_processes_has_their_target(
    target: float, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadax.loader.workers.process_pool.PIECE_SECONDS", target)
    monkeypatch.setattr("loadax.loader.execution.piece_size.TARGET", 1 / target)
    loader = Dataloader(from_arrays({"x": np.arange(64)}), 8, num_workers=1, worker_type="process", prefetch_bytes=1)
    with iter(loader) as batches:
        assert [batch["x"].tolist() for batch in batches] == np.arange(64).reshape(8, 8).tolist()
        lanes = batches.ledger.monitor.timeline().bars().values()
    pieces = [bar for bars in lanes for bar in bars if bar.stage == "read"]
    assert sum(piece.rows for piece in pieces) == 64
    assert (len(pieces) > 8) == cut


@pytest.mark.parametrize(("target", "reads"), [(1e9, 1 + 256 // 16), (1e-9, 256)])
def test_small_steps_are_read_together_without_workers(
    target: float, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a millisecond's worth: reading them one by one took twice as long as all the rest of a step."""
    monkeypatch.setattr("loadax.loader.execution.piece_size.ALONE_TARGET", target)
    mesh = data_parallel(jax.devices()[:4])
    with iter(Dataloader(from_arrays({"x": np.arange(4 * 256)}), 4, num_workers=0, mesh=mesh)) as batches:
        assert [batch["x"].tolist() for batch in batches] == np.arange(4 * 256).reshape(-1, 4).tolist()
        lanes = batches.ledger.monitor.timeline().bars().values()
    pieces = [bar for bars in lanes for bar in bars if bar.stage == "read"]
    assert len(pieces) == pytest.approx(reads, abs=4)  # the last groups are smaller


def test_lines_of_a_small_step() -> None:
    """A step of a few rows runs a bounded number of lines of Python."""
    loader = Dataloader(from_arrays(np.arange(10**5)).shuffle(seed=0), 64, num_epochs=None, num_workers=0)
    with iter(loader) as batches, pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches.ledger.monitor.piece_sizes, "_group_target", 1e9)
        for _ in range(64):
            next(batches)
        lines = lines_of(lambda: [next(batches) for _ in range(160)])
    assert lines < 160 * 400  # about 385 a step; 755 when every step was read by itself
