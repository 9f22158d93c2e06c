"""`chain`: loaders one after the other are one run: its batches, states, epochs, errors, and what is read ahead."""

import json
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import loadax
from loadax import Dataloader, Dataset, chain, from_arrays, from_source
from loadax.errors import (
    ArgumentError,
    ClosedError,
    PartitionError,
    RowIndexError,
    StateError,
    StreamError,
    WorkerError,
)
from loadax.loader.execution.thread_pool import ThreadPool
from loadax.plan.find import StepPosition
from loadax.sharding import data_parallel
from tests.limits import HANG, until
from tests.loader.oracle import ReadSource, assert_placed

ROWS = np.arange(64 * 8, dtype=np.int32).reshape(64, 8)
NAMES = np.array([f"row {row}" for row in range(64)])
DATA = from_arrays({"x": ROWS, "name": NAMES}).shuffle(seed=3)


def loaders(workers: int | None = 2, last: int | None = 1, **options: Any) -> list[Dataloader]:
    """Short sequences, whole ones, and other data: 4, 6 and 4 steps of 2, 2 and 1 epochs."""
    options = {"num_workers": workers, "host_leaves": "name", "partition": P("data"), **options}
    other = from_arrays({"x": ROWS + 10_000, "name": NAMES})
    return [
        Dataloader(DATA, 32, seq_len=4, num_epochs=2, **options),
        Dataloader(DATA, {0: 16, 2: 32}, num_epochs=2, **options),
        Dataloader(other, 16, num_epochs=last, **options),
    ]


def batches_of(parts: list[Dataloader]) -> list[Any]:
    """The batches of each loader in turn, one by one."""
    return [jax.tree.map(np.asarray, part[step]) for part in parts for step in range(len(part))]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return batches_of(loaders(0))


def check(batches: Any, wanted: list[Any]) -> None:
    for batch, whole in zip(batches, wanted, strict=True):
        assert_placed(batch, whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_each_loader_in_turn(workers: int, expected: list[Any]) -> None:
    parts = loaders(workers)
    run = chain([chain(parts[:2]), parts[2]])
    assert (len(run), run.first_steps, isinstance(run, Dataloader)) == (13, (0, 4, 9), True)
    assert [part.digest() for part in run.loaders] == [part.digest() for part in parts]
    assert (run.batch_size, run.steps_per_epoch, bool(run)) == (32, 2, True)
    check(run, expected)
    check((run[step] for step in range(13)), expected)
    assert {step: spec["x"].shape for step, spec in run.specs.items()} == {
        0: (32, 4),
        4: (16, 8),
        6: (32, 8),
        9: (16, 8),
    }
    assert run.spec["x"].shape == (32, 4)
    with run.host_batches() as on_host:
        for step, batch in enumerate(on_host):
            np.testing.assert_array_equal(batch["x"], run.host_batch(step)["x"])
            np.testing.assert_array_equal(on_host.host["name"], run.host(step)["name"])
            assert (on_host.host.step, run.host(step).step) == (step, step)
    assert repr(run) == f"chain([{parts[0]!r}, {parts[1]!r}, {parts[2]!r}])"


def test_rows_and_traces_are_those_of_the_loader_of_the_step() -> None:
    parts = loaders()
    run = chain(parts)
    for step in range(13):
        phase = sum(step >= first for first in run.first_steps) - 1
        local = step - run.first_steps[phase]
        assert run.rows(step).tolist() == parts[phase].rows(local).tolist()
        assert run.local_rows(step).tolist() == parts[phase].local_rows(local).tolist()
        trace = run.trace(step, [3])
        assert (trace.step, trace[3].id) == (step, run.rows(step)[3])
        assert StepPosition(step, 3) in run.find(trace[3].id, phase=phase)
    assert run.find(5, phase=2, steps=range(1)) == [StepPosition(9, 5)]
    text = r"find\(5\): the loader has 3 phases, each with row ids of its own; pass phase=, an int from 0 to 2"
    with pytest.raises(ArgumentError, match=text):
        run.find(5)
    with pytest.raises(ArgumentError, match="phase=3"):
        run.find(5, phase=3)
    for step in (-1, 13):
        with pytest.raises(RowIndexError, match=f"step {step} is out of range: steps are at least 0 and below 13"):
            run[step]
    explained, checked = run.explain(2), run.check_plan()
    assert [first for first, _ in explained.later] == [first for first, _ in checked.later] == [4, 9]
    for number, part in enumerate(parts):
        alone = explained if number == 0 else explained.later[number - 1][1]
        assert replace(alone, later=()).to_dict() == part.explain(2).to_dict()
        assert str(part.explain(2)) in str(explained)
        assert str(part.check_plan()) in str(checked)
    for first in (4, 9):
        assert f"\nfrom step {first} on\ndata " in str(explained)
        assert f"\nfrom step {first} on\nchecked all steps" in str(checked)
    assert [first for first, _ in run.explain(2, at=5).later] == [9]
    assert (run.explain(2, at=5).batches.batch_size, run.explain(2, at=6).batches.batch_size) == (16, 32)
    assert json.loads(json.dumps(checked.to_dict()))["later"][1][0] == 9
    assert explained.to_dict()["later"][1][0] == 9


def test_state_of_each_step_resumes_on_another_mesh(expected: list[Any]) -> None:
    run, mesh = chain(loaders()), data_parallel(jax.devices()[:4])
    moved = chain(loaders(1, mesh=mesh))
    with run.iterate() as batches:
        for step in range(14):
            assert (batches.step, batches.phase) == (step, (step >= 4) + (step >= 9))
            assert batches.epoch == [0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5][step]
            state = json.loads(json.dumps(batches.get_state()))
            with moved.iterate(state) as resumed:
                assert (resumed.step, resumed.get_state()) == (step, state)
                check(resumed, expected[step:])
            with run.iterate(step) as started:
                assert started.get_state() == state
            if step < 13:
                assert batches.batch_size == len(expected[step]["x"])
                next(batches)
        assert batches.stats().steps == 13
        assert batches.ledger.step == 13


def test_set_state_goes_to_any_phase_and_after_the_end(expected: list[Any]) -> None:
    with chain(loaders()).iterate() as batches:
        for step in (10, 3, 13, 4, 8, 0, 9):
            batches.set_state(step)
            check(islice(batches, 3), expected[step : step + 3])
        assert batches.stats().steps == 3
        state = batches.get_state()
        batches.close()
        batches.set_state(state)
        check(batches, expected[12:])


def test_state_of_a_loader_alone_is_that_of_the_first_phase(expected: list[Any]) -> None:
    first, *others = loaders()
    for step in (0, 3, 4):
        with first.iterate(step) as alone, chain([first, *others]).iterate(step) as batches:
            assert batches.get_state() == alone.get_state()
            check(chain([first, *others]).iterate(alone.get_state()), expected[step:])
    with chain([first, *others]).iterate(5) as batches, pytest.raises(StateError, match="chain the loaders of the"):
        first.iterate(batches.get_state())


def test_chain_that_was_extended_or_whose_later_phases_changed_continues(expected: list[Any]) -> None:
    one, two, three = loaders()
    for step in (4, 6, 9):
        state = chain([one, two]).iterate(step).get_state()
        check(chain([one, two, three]).iterate(state), expected[step:])
    state = chain([one, three]).iterate(4).get_state()
    check(chain([one, two, three]).iterate(state), expected[4:])
    longer = Dataloader(DATA, {0: 16, 2: 32}, num_epochs=3, partition=P("data"), host_leaves="name")
    check(islice(chain([one, longer]).iterate(chain([one, two]).iterate(8).get_state()), 1), expected[8:9])


def test_state_of_other_loaders_is_refused_and_names_the_phase() -> None:
    one, two, three = loaders()
    run = chain([one, two, three])
    with run.iterate(10) as batches:
        state = batches.get_state()
        other = Dataloader(DATA.map(dict, rng=False), 16, host_leaves="name")
        with pytest.raises(StateError, match=r"loaders\[1\]: the state's 'order' is .*; build the dataset as it was"):
            chain([one, other, three]).iterate(state)
        once = Dataloader(DATA, 16, seq_len=4, num_epochs=3, host_leaves="name")
        text = r"loaders\[0\] has ended before step 8 in the saved run, and ends before step 12 here; pass the num"
        with pytest.raises(StateError, match=text):
            chain([once, two, three]).iterate(state)
        with pytest.raises(StateError, match="in its loader 2, counted from 0, and there are only 2 here; chain the"):
            chain([one, two]).iterate(state)
        for wrong in ({**state, "phases": []}, {**state, "phases": 3}, {**state, "phases": [5]}):
            with pytest.raises(StateError, match=r"the state's 'phases' is .*; pass a state of get_state\(\)"):
                batches.set_state(wrong)
        for start in (-1, 14):
            with pytest.raises(StateError, match=f"start is step {start}: pass a step of at least 0 and at most 13"):
                batches.set_state(start)
        with pytest.raises(StateError, match=r"pass a step \(an int\), or a state of get_state\(\); this is text"):
            batches.set_state(json.dumps(state))
        assert batches.get_state() == state


def test_epochs_are_those_of_each_loader_in_turn(expected: list[Any]) -> None:
    run, seen = chain(loaders()), []
    lengths = []
    for number, epoch in enumerate(run.epochs()):
        assert epoch.number == number
        lengths.append(len(epoch))
        seen += [*epoch]
    assert lengths == [2, 2, 3, 2, 4]
    check(seen, expected)
    assert [(epoch.number, next(epoch)["x"].shape) for epoch in run.epochs(3)] == [
        (1, (32, 4)),
        (2, (16, 8)),
        (3, (32, 8)),
        (4, (16, 8)),
    ]


def test_last_loader_may_be_endless(expected: list[Any]) -> None:
    run = chain(loaders(last=None))
    with pytest.raises(TypeError, match="infinite"):
        len(run)
    assert run
    with run.iterate(8) as batches:
        assert batches.num_steps is None
        check(islice(batches, 5), expected[8:])
        assert (next(batches)["x"].shape, batches.epoch) == ((16, 8), 5)
    check([run[12]], expected[12:])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (list, ArgumentError, r"chain\(\) got no loaders; pass at least one"),
        (lambda: 3, ArgumentError, "loaders=3: pass a list of Dataloaders"),
        (lambda: [DATA], ArgumentError, r"loaders\[0\] is .*Dataset; pass Dataloaders, or concat\(\) the"),
        (
            lambda: loaders(last=None)[::-1],
            ArgumentError,
            r"loaders\[0\] is infinite; make it with num_epochs=, or pass it last",
        ),
        (
            lambda: [Dataloader(ROWS, 8), Dataloader(ROWS, 8, shard_index=0, shard_count=2)],
            ArgumentError,
            r"loaders\[1\] has the share .*, not None as loaders\[0\]; pass one share to all",
        ),
        (
            lambda: [Dataloader(loadax.from_stream(lambda lane, lanes: iter([lane]), lanes=8), 8)],
            StreamError,
            r"chain\(\): a stream has no length .* chain the other loaders, and iterate over the loader of the stream",
        ),
    ],
)
def test_what_cannot_be_chained_is_refused(given: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        chain(given())


def test_advice_of_refusals_works(expected: list[Any]) -> None:
    assert len(loadax.concat([DATA, DATA])) == 128
    run = chain([*loaders()[:2], *loaders(last=None)[2:]])  # the infinite one last
    check(islice(run, 13), expected)
    shared: dict[str, Any] = {"shard_index": 0, "shard_count": 2}
    parts = chain([Dataloader(ROWS, 8, **shared), Dataloader(ROWS, 16, **shared)])
    assert [len(parts.local_rows(step)) for step in (0, 8)] == [4, 8]
    assert [len(batch) for batch in parts.host_batches(7)] == [4, 8, 8, 8, 8]


def test_move_to_moves_the_present_and_later_phases(expected: list[Any]) -> None:
    mesh = data_parallel(jax.devices()[:4])
    for step in (3, 4, 12, 13):
        with chain(loaders()).iterate(step - 2) as batches:
            check(islice(batches, 2), expected[step - 2 : step])
            names = batches.host["name"].tolist()
            batches.move_to(mesh)
            assert (batches.step, batches.mesh, batches.host["name"].tolist()) == (step, mesh, names)
            for number, batch in enumerate(batches, step):
                assert_placed(batch, expected[number], mesh)
            assert number + 1 == 13 or step == 13
            assert batches.stats().steps == 15 - step
            batches.set_state(0)
            assert_placed(next(batches), expected[0], mesh)


def test_mesh_that_does_not_fit_a_later_phase_leaves_the_iterator_where_it_is(expected: list[Any]) -> None:
    four, eight = (data_parallel(jax.devices()[:count]) for count in (4, 8))
    first, odd = loaders(mesh=four)[0], Dataloader(ROWS[:12], 12, mesh=four)
    with chain([first, odd]).iterate(2) as batches:
        with pytest.raises(PartitionError, match=r"12 rows.* or move to another mesh"):
            batches.move_to(eight)
        assert batches.mesh == four
        check(islice(batches, 2), expected[2:4])
        assert next(batches).tolist() == ROWS[:12].tolist()


def test_errors_name_the_loader_and_the_iterator_goes_on_after_them(expected: list[Any]) -> None:
    broken = from_source([{"x": np.zeros(8 if row != 20 else 3)} for row in range(32)])
    first, _, last = loaders()
    run = chain([first, Dataloader(broken, 8), last])
    with run.iterate() as batches:
        check(islice(batches, 4), expected[:4])
        assert len([next(batches), next(batches)]) == 2
        for _ in range(2):
            with pytest.raises(ValueError, match="row 20") as caught:
                next(batches)
            notes = [note for note in caught.value.__notes__ if "chain" in note]
            assert notes == ["in loaders[1] of the chain, which begins at its step 4"]
        batches.set_state(8)
        check(batches, expected[9:])


def test_loader_whose_workers_cannot_start_is_named() -> None:
    lock = threading.Lock()
    unsendable = from_source([{"x": 1}] * 8).map(lambda row: (lock, row)[1])
    run = chain([Dataloader(ROWS, 16), Dataloader(unsendable, 8, worker_type="process", num_workers=1)])
    with run.iterate() as batches, pytest.raises(WorkerError, match="can't be sent to a worker process") as caught:
        list(batches)
    assert caught.value.__notes__ == ["in loaders[1] of the chain, which begins at its step 4"]


def test_closed_iterator_does_not_open_the_next_phase() -> None:
    with chain(loaders()).iterate(2) as batches:
        next(batches), next(batches)
    assert (batches.step, batches.phase) == (4, 1)
    with pytest.raises(ClosedError, match="this iterator is closed"):
        next(batches)
    assert threads_end()


def threads_end() -> bool:
    until(lambda: not any(thread.name.startswith("loadax-worker") for thread in threading.enumerate()))
    return True


def test_next_phase_is_read_before_the_last_batches_are_taken() -> None:
    source = ReadSource({"x": ROWS})
    run = chain([Dataloader(ROWS, 16, num_workers=1), Dataloader(from_source(source), 16, num_workers=1)])
    with run.iterate() as batches:
        assert source.counts.sum() <= 1  # for the spec
        next(batches)
        until(lambda: source.counts.sum() >= 32)
        assert (batches.step, batches.phase) == (1, 0)
        list(batches)
    assert source.counts.sum() <= 64 + 1
    batches = run.iterate()
    next(batches)
    del batches  # with both phases open
    assert threads_end()


def test_both_phases_read_ahead_within_prefetch_bytes() -> None:
    """The next one gets what the present one leaves, and all once that has ended."""
    row, steps = 1 << 10, 32
    source = ReadSource({"x": np.zeros((16 * steps, row), np.uint8)})
    options: dict[str, Any] = {"num_workers": 2, "prefetch": 1, "prefetch_bytes": 8 * 16 * row}
    run = chain(
        [Dataloader(np.zeros((256, row), np.uint8), 16, **options), Dataloader(from_source(source), 16, **options)]
    )
    with run.iterate() as batches:
        for _ in range(9):
            next(batches)
        until(lambda: source.counts.sum() >= 16)
        with pytest.raises(AssertionError):  # 7 steps are left of the first loader, and one is placed
            until(lambda: source.counts.sum() > 16 * 3, 0.2)
        for _ in range(7):
            next(batches)
        until(lambda: source.counts.sum() >= 16 * 7)
        next(batches)
        until(lambda: source.counts.sum() >= 16 * 9)


@pytest.mark.parametrize("where", ["pause", "close", "__init__", "start"])
@pytest.mark.parametrize("ahead", [True, False])
def test_interrupt_where_the_next_phase_begins_loses_no_batch(
    where: str, ahead: bool, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadax.loader.iterator.EARLY", 64 if ahead else -1)
    original, left = getattr(ThreadPool, where), [1, 1]
    served: list[Any] = []

    def interrupted(pool: ThreadPool, *arguments: Any) -> Any:
        if left and len(served) >= 4:
            left.pop()
            raise KeyboardInterrupt
        return original(pool, *arguments)

    with chain(loaders(1)).iterate() as batches:
        monkeypatch.setattr(ThreadPool, where, interrupted)
        while batches.step < 13:
            try:
                served.append(next(batches))
            except KeyboardInterrupt:
                continue
        left.clear()
    assert ahead or where == "close" or not left
    check(served, expected)
    assert threads_end()


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_share_an_iterator_get_each_batch_once(workers: int) -> None:
    run = chain([Dataloader(np.arange(first, first + 64), 8, num_workers=workers) for first in range(0, 256, 64)])
    wanted = [8 * step for step in range(32)]
    begin = threading.Barrier(4)

    def consume(batches: Any) -> list[int]:
        begin.wait()
        return [int(batch[0]) for batch in batches]

    for _ in range(3):
        batches = run.iterate()
        with ThreadPoolExecutor(4) as pool:
            consumers = [pool.submit(consume, batches) for _ in range(4)]
            assert sorted(row for consumer in consumers for row in consumer.result(HANG)) == wanted


@pytest.mark.processes
def test_phases_with_worker_processes(expected: list[Any]) -> None:
    first, second, third = loaders(1, worker_type="process")[0], *loaders(1)[1:]
    with chain([second, first, third]).iterate(3) as batches:
        check(batches, [*expected[7:9], *expected[:4], *expected[9:]])
        assert batches.stats().worker_type == "thread"


def test_second_pass_warns_and_copies_are_chains(expected: list[Any]) -> None:
    run = pickle.loads(pickle.dumps(chain(loaders())))
    check(run, expected)
    with pytest.warns(UserWarning, match="repeats the batches of the first pass"):
        next(iter(run))


def test_accepted_where_a_loader_is() -> None:
    from loadax.interop.grain import as_grain_iterator
    from loadax.interop.prometheus import serve

    run = chain(loaders())
    assert len(list(loadax.progress(run, disable=True))) == 13
    assert len(list(as_grain_iterator(run.iterate(3)))) == 10
    with serve(run) as exporter, run.iterate() as batches:
        list(batches)
        import urllib.request

        text = urllib.request.urlopen(exporter.url).read().decode()
    assert "loadax_steps_total 13.0" in text
    assert "loadax_step 13.0" in text


def test_same_loader_may_come_twice() -> None:
    data: Dataset = from_arrays(np.arange(16)).shuffle(seed=1)
    loader = Dataloader(data, 8, num_workers=1)
    assert [batch.tolist() for batch in chain([loader, loader])] == [
        loader.rows(step % 2).tolist() for step in range(4)
    ]


@pytest.mark.parametrize("function", [loadax.chain, loadax.concat])
def test_a_loader_without_end_in_place_of_a_list_is_not_read(function: Any) -> None:
    endless = Dataloader(np.arange(8), 4, num_epochs=None)
    with pytest.raises(ArgumentError, match=r"(loaders|datasets)=Dataloader\(.*: pass a list of "):
        function(endless)
    assert len(loadax.chain([Dataloader(np.arange(8), 4)])) == 2


class TestTheDigest:
    def test_of_a_single_loader_is_its_own(self) -> None:
        (first, *_) = loaders(0)
        assert chain([first]).digest() == first.digest()
        assert chain([first]).digest(range(1, 3)) == first.digest(range(1, 3))

    def test_of_ranges_adds_up_over_the_phases(self) -> None:
        run = chain(loaders(0))
        for half in (slice(16), slice(16, 32)):
            cuts = [run.digest(range(*ends))[half] for ends in ((0, 3), (3, 11), (11, len(run)))]
            assert sum(int(cut, 16) for cut in cuts) % 2**64 == int(run.digest()[half], 16)

    def test_depends_on_the_order_of_the_phases_and_on_skipped_steps(self) -> None:
        first, second, third = loaders(0)
        run = chain([first, second, third])
        digests = {run.digest(), chain([second, first, third]).digest(), run.skip(5).digest()}
        assert len(digests) == 3

    @pytest.mark.parametrize("steps", [range(15), range(-1, 3), range(3, 3), range(0, 8, 2), [1]])
    def test_of_other_steps_is_refused(self, steps: Any) -> None:
        with pytest.raises((ArgumentError, RowIndexError)):
            chain(loaders(0)).digest(steps)

    def test_of_an_endless_run_needs_steps(self) -> None:
        run = chain(loaders(0, last=None))
        with pytest.raises(ArgumentError, match=r"pass steps=range\(start, stop\)"):
            run.digest()
        assert run.digest(range(12, 100)) != run.digest(range(12, 101))


class TestTheWarmup:
    @pytest.mark.parametrize("start", [0, 3, 6])
    def test_is_what_the_next_iterator_continues_with(self, start: int) -> None:
        source = ReadSource({"x": ROWS})
        data = from_source(source)
        run = chain([Dataloader(data, 16, num_workers=2), Dataloader(data, 8, num_workers=2)])
        expected = [run.rows(step).tolist() for step in range(12)]
        source.counts[:] = 0
        run.warmup(start)
        until(lambda: source.counts.sum() > 0)
        with run.iterate(start) as batches:
            assert [(batch["x"][:, 0] // 8).tolist() for batch in batches] == expected[start:]
        assert source.counts.sum() == sum(map(len, expected[start:]))  # none was read twice

    def test_is_dropped_by_another_start(self, expected: list[Any]) -> None:
        run = chain(loaders())
        run.warmup(2)
        with run.iterate(9) as batches:
            assert sum(thread.name.startswith("loadax-worker") for thread in threading.enumerate()) == 2
            check(batches, expected[9:])
        assert threads_end()
