"""A loop that begins again at step 0 warns once, at the user's line, if its later batches would have been others."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from loadax import Buckets, Dataloader, chain, from_arrays, from_source, from_stream, mix, progress

DATA = from_arrays({"x": np.arange(64)})
SHUFFLED = DATA.shuffle(0)
ROWS = [{"t": np.arange(1 + row % 4), "x": np.int32(row)} for row in range(64)]


def added(row: Any, rng: np.random.Generator) -> Any:
    return {"x": row["x"] + rng.random()}


def lane_rows(lane: int, lanes: int) -> Iterator[Any]:
    return iter(range(100))


RANDOM: dict[str, Callable[[], Any]] = {
    "endless": lambda: Dataloader(SHUFFLED, 8, num_epochs=None),
    "one epoch": lambda: Dataloader(SHUFFLED, 8),
    "several epochs": lambda: Dataloader(SHUFFLED, 8, num_epochs=10),
    "no workers": lambda: Dataloader(SHUFFLED, 8, num_epochs=10, num_workers=0),
    "random map": lambda: Dataloader(DATA.map(added, rng=True), 8),
    "epoch in a map": lambda: Dataloader(DATA.map(lambda row, epoch: {"x": row["x"] + epoch}, with_epoch=True), 8),
    "keys": lambda: Dataloader(DATA, 8, key_seed=0),
    "mix": lambda: Dataloader(mix({"a": DATA, "b": DATA}, [1, 2], stop="never"), 8, num_epochs=None),
    "sample": lambda: Dataloader(DATA.sample(np.ones(64), 64, seed=0), 8),
    "buckets": lambda: Dataloader(from_source(ROWS).shuffle(0), Buckets("t", {4: 8}), num_epochs=None),
    "chain": lambda: chain([Dataloader(SHUFFLED, 8), Dataloader(SHUFFLED, 8, num_epochs=None)]),
    "chain with a later shuffle": lambda: chain([Dataloader(DATA, 8), Dataloader(SHUFFLED, 8)]),
    "stream of a shuffle": lambda: Dataloader(SHUFFLED.to_stream(lanes=8), 8, num_epochs=None),
    "stream": lambda: Dataloader(from_stream(lane_rows, lanes=8), 8),
}
FIXED: dict[str, Callable[[], Any]] = {
    "in order": lambda: Dataloader(DATA, 8, num_epochs=3),
    "mapped": lambda: Dataloader(DATA.map(lambda row: row), 8),
    "chain": lambda: chain([Dataloader(DATA, 8), Dataloader(DATA, 8)]),
}


def with_iter(loader: Any) -> Any:
    with iter(loader) as batches:
        return next(batches)


def broken(loader: Any) -> Any:
    for batch in loader:
        return batch
    raise AssertionError


LOOPS: dict[str, Callable[[Any], Any]] = {
    "islice": lambda loader: list(itertools.islice(loader, 3)),
    "break": broken,
    "zip": lambda loader: list(zip(range(3), loader, strict=False)),
    "next": lambda loader: next(iter(loader)),
    "with": with_iter,
    "progress": lambda loader: next(progress(loader, disable=True)),
    "enumerate": lambda loader: next(enumerate(loader)),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", RANDOM)
def test_loop_that_begins_again_warns_once(kind: str, loop: str) -> None:
    loader = RANDOM[kind]()
    LOOPS[loop](loader)
    with pytest.warns(UserWarning, match=r"starts at step 0 again.*keep one iterator.*iterate\(start=state") as caught:
        LOOPS[loop](loader)
    assert [warning.filename for warning in caught] == [__file__]
    assert ("loader.epochs()" in str(caught[0].message)) == ("stream" not in kind)
    LOOPS[loop](loader)  # a warning is an error here


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", FIXED)
def test_orders_that_do_not_vary_are_quiet(kind: str, loop: str) -> None:
    loader = FIXED[kind]()
    for _ in range(3):
        LOOPS[loop](loader)
        list(loader)


@pytest.mark.parametrize("kind", ["one epoch", "chain with a later shuffle"])
def test_epochs_of_a_run_that_begins_again_warn(kind: str) -> None:
    loader = RANDOM[kind]()
    for epoch in loader.epochs():
        next(epoch)
    again = loader.epochs()
    with pytest.warns(UserWarning, match=r"loader.epochs\(\) starts at step 0 again") as caught:
        next(next(again))
    assert caught[0].filename == __file__


def test_first_batch_is_not_enough_reason_if_there_was_none() -> None:
    loader = RANDOM["endless"]()
    iter(loader).close()
    iter(loader).close()
    zip(loader, loader, strict=False)


def test_stream_that_is_read_whole_is_quiet() -> None:
    loader = Dataloader(from_stream(lane_rows, lanes=8), 8)
    assert len({sum(1 for _ in loader) for _ in range(3)}) == 1


@pytest.mark.parametrize("kind", [*RANDOM])
def test_advice_goes_on_or_is_quiet(kind: str) -> None:
    loader = RANDOM[kind]()
    batches = iter(loader)
    parts = [list(itertools.islice(batches, 2)) for _ in range(2)]
    state = batches.get_state()
    whole = list(itertools.islice(loader.iterate(), 5))
    for batch, expected in zip([*parts[0], *parts[1], next(loader.iterate(start=state))], whole, strict=True):
        assert all(np.array_equal(np.asarray(batch[name]), np.asarray(expected[name])) for name in expected)
    for _ in range(3):  # evaluation, or a look before training
        next(loader.iterate())


def test_epochs_are_what_the_advice_says() -> None:
    loader = RANDOM["several epochs"]()
    firsts = [np.asarray(next(epoch)["x"]).tolist() for epoch in loader.epochs()]
    assert len({*map(tuple, firsts)}) == 10


def test_a_look_by_iterate_is_no_first_pass() -> None:
    loader = RANDOM["endless"]()
    next(loader.iterate())
    next(iter(loader))


def test_a_loader_with_other_steps_begins_by_itself() -> None:
    loader = RANDOM["one epoch"]()
    next(iter(loader))
    next(iter(loader.skip(1)))


def test_a_pass_by_iterate_counts() -> None:
    loader = RANDOM["one epoch"]()
    list(loader.iterate())
    with pytest.warns(UserWarning, match="starts at step 0 again"):
        next(iter(loader))


def test_an_iterator_that_goes_on_from_a_state_does_not_warn() -> None:
    loader = RANDOM["endless"]()
    batches = iter(loader)
    next(batches)
    state = batches.get_state()
    later = iter(loader)
    later.set_state(state)
    next(later)
    with pytest.warns(UserWarning, match="starts at step 0 again"):
        next(iter(loader))


def test_warning_is_the_users_line_through_frames_of_this_package() -> None:
    loader = RANDOM["endless"]()
    next(progress(loader, disable=True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(progress(loader, disable=True))
    assert [(warning.category, warning.filename) for warning in caught] == [(UserWarning, __file__)]
