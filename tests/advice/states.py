"""Advice of saved states and leases."""

import json
import os
import warnings
from typing import Any

import numpy as np

import loadax
from loadax import Dataloader, from_arrays
from loadax.errors import ArgumentError, ClosedError, StateError
from loadax.loader.checkpoint import read_state
from tests.advice.registry import Case, follows

DATA = from_arrays({"x": np.arange(64)})


def loader_of(**options: Any) -> Dataloader:
    return Dataloader(DATA, **{"batch_size": 8, "num_workers": 0, **options})


def state_at(loader: Any, step: int) -> Any:
    with loader.iterate() as batches:
        for _ in range(step):
            next(batches)
        return json.loads(json.dumps(batches.get_state()))


def check_resumes(loader: Any, state: Any, step: int) -> None:
    with loader.iterate(start=state) as batches:
        np.testing.assert_array_equal(next(batches)["x"], loader[step]["x"])


def mixed(weights: Any = (1, 1), **options: Any) -> Any:
    return loadax.mix({"a": DATA, "b": DATA}, weights, stop="never", **options)


@follows("make mix() the last verb but for maps, and pass a number for batch_size")
def weights_of_what_is_no_mixture(case: Case) -> None:
    with loader_of().iterate() as batches, case.refused(ArgumentError):
        batches.set_weights([1, 3])
    with Dataloader(mixed(), 8, num_workers=0).iterate() as batches:
        batches.set_weights([1, 3])


@follows("pass a state of get_state(), or weights by step: {1000: {name: weight}}")
def weights_of_no_step(case: Case) -> None:
    loader = Dataloader(mixed(), 8, num_workers=0, num_epochs=None)
    with case.refused(ArgumentError):
        loader.with_weights([1, 3])
    assert loader.with_weights({1000: {"a": 1, "b": 3}}).rows(1000).shape == (8,)
    assert loader.with_weights(state_at(loader, 2)).rows(3).tolist() == loader.rows(3).tolist()


@follows("pass it to the loader of loader.with_weights(state)")
def lease_of_a_state_with_weights(case: Case) -> None:
    loader = Dataloader(mixed(), 8, num_workers=0)
    with loader.iterate(3) as batches:
        batches.set_weights([1, 3])
        state = batches.get_state()
    with case.refused(StateError):
        loader.lease(state)
    with loader.with_weights(state).lease(state) as lease:
        assert next(lease).examples["x"].shape == (8,)


def streams(lanes: int = 4) -> Dataloader:
    return Dataloader(DATA.to_stream(lanes=lanes), 8, num_workers=0)


@follows("save a state with json.dump(it.get_state(), file), and go on from it with it.set_state(json.load(file))")
def orbax_method_called_by_hand(case: Case) -> None:
    with loader_of().iterate() as it:
        next(it)
        method: Any = it.save
        with case.refused(ArgumentError):
            method(str(case.folder / "state"))
        with (case.folder / "state.json").open("w") as file:
            json.dump(it.get_state(), file)
        next(it)
        with (case.folder / "state.json").open() as file:
            it.set_state(json.load(file))
        np.testing.assert_array_equal(next(it)["x"], loader_of()[1]["x"])


@follows("restore the data, or resume all the same with Dataloader(…, contents=None)")
def changed_byte_of_a_file(case: Case) -> None:
    path = case.folder / "x.npy"
    np.save(path, np.arange(64))
    content = path.read_bytes()
    state = state_at(Dataloader(loadax.from_npy(path), 8, contents="digest"), 3)
    path.write_bytes(content[:-8] + b"\x09" + content[-7:])
    with case.refused(StateError):
        Dataloader(loadax.from_npy(path), 8, contents="digest").iterate(state)
    unchecked = Dataloader(loadax.from_npy(path), 8, contents=None)
    np.testing.assert_array_equal(next(unchecked.iterate(state)), unchecked[3])
    path.write_bytes(content)
    with Dataloader(loadax.from_npy(path), 8, contents="digest").iterate(state) as batches:
        assert next(batches).tolist() == list(range(24, 32))


@follows("save states with Dataloader(…, contents='digest'); not to compare: contents=None")
def copied_file(case: Case) -> None:
    path = case.folder / "x.npy"
    np.save(path, np.arange(64))
    state = state_at(Dataloader(loadax.from_npy(path), 8), 3)
    digests = state_at(Dataloader(loadax.from_npy(path), 8, contents="digest"), 3)
    os.utime(path, (1, 1))
    with warnings.catch_warnings(), case.refused(UserWarning):
        warnings.simplefilter("error")
        Dataloader(loadax.from_npy(path), 8).iterate(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataloader(loadax.from_npy(path), 8, contents=None).iterate(state).close()
        Dataloader(loadax.from_npy(path), 8).iterate(digests).close()


@follows("are neither in files nor in memory, so their bytes can't be compared; leave contents= out")
def digests_of_made_up_rows(case: Case) -> None:
    made = loadax.from_source(MadeUp())
    with case.refused(ArgumentError):
        iter(Dataloader(made, 8, contents="digest"))
    assert next(iter(Dataloader(made, 8)))["x"].tolist() == list(range(8))


class MadeUp:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> dict[str, int]:
        return {"x": row}


@follows("start it at the step of the checkpoint: loader.iterate(start=step)")
def checkpoint_of_something_else(case: Case) -> None:
    with case.refused(StateError):
        read_state(case.folder)
    check_resumes(loader_of(), 3, 3)


@follows("; pass a state of get_state()")
def damaged_states(case: Case) -> None:
    loader, stream = loader_of(), streams()
    state, of_stream = state_at(loader, 2), state_at(stream, 2)
    chained = loadax.chain([loader_of(), loader_of()])
    with chained.iterate() as batches:
        for _ in range(9):
            next(batches)
        of_chain = batches.get_state()
    (lanes,) = [key for key in of_stream if key not in state]
    (parts,) = [key for key in of_chain if key not in state]
    first = next(iter(of_stream[lanes][0].items()))
    wrong: list[tuple[Any, Any]] = [
        (loader, {}),
        (loader, state | {"position": 64}),
        (loader_of(num_epochs=None), state | {"epoch": 2**62}),
        (chained, {**of_chain, parts: 3}),
        (stream, of_stream | {lanes: [{"9": first[1]}]}),
        (stream, of_stream | {lanes: 3}),
    ]
    for damaged, given in wrong:
        with case.refused(StateError), damaged.iterate(start=given) as batches:
            next(batches)
    check_resumes(loader, state, 2)
    with chained.iterate(start=of_chain) as batches:
        np.testing.assert_array_equal(next(batches)["x"], loader[1]["x"])
    with stream.iterate(start=of_stream) as batches:
        assert next(batches)["x"].shape == (8,)


@follows("pass a state of get_state() of this run, or an earlier step")
def step_that_would_take_days(case: Case) -> None:
    stream = Dataloader(DATA.to_stream(lanes=4), 8, num_workers=0, num_epochs=None)
    with case.refused(StateError), stream.iterate(start=10**12) as batches:
        next(batches)
    state = state_at(stream, 2)
    for start in (state, 2):
        with stream.iterate(start=start) as batches:
            assert next(batches)["x"].shape == (8,)


@follows("pass the state to loader.skip([…]), of the loader without skip(), and skip others only from step … on")
def state_of_a_run_that_skipped(case: Case) -> None:
    skipping = loader_of().skip(range(1, 3))
    state = state_at(skipping, 2)
    with case.refused(StateError), loader_of().iterate(start=state):
        pass
    check_resumes(loader_of().skip(range(1, 3)), state, 2)
    check_resumes(loader_of().skip(range(1, 3)).skip(range(4, 5)), state, 2)


@follows("pass the state to the loader without skip(), or skip only steps from … on")
def state_of_a_run_that_skipped_nothing(case: Case) -> None:
    state = state_at(loader_of(), 3)
    with case.refused(StateError), loader_of().skip(1).iterate(start=state):
        pass
    check_resumes(loader_of(), state, 3)
    check_resumes(loader_of().skip(range(4, 5)), state, 3)


@follows("pass it to loader.lease()")
def state_of_a_lease(case: Case) -> None:
    loader = loader_of()
    with loader.lease() as lease:
        next(lease)
        state = lease.get_state()
    with case.refused(StateError), loader.iterate(start=state):
        pass
    with loader.lease(state) as lease:
        assert next(lease).examples["x"].tolist() == loader.rows(0).tolist()


@follows("pass a state of lease.get_state()")
def damaged_state_of_a_lease(case: Case) -> None:
    loader = loader_of()
    with loader.lease() as lease:
        next(lease)
        state = lease.get_state()
    (key,) = [key for key in state if key not in state_at(loader, 1)]
    with case.refused(StateError):
        loader.lease(state | {key: 3})
    with loader.lease(state) as lease:
        assert len(next(lease).positions) == 8


@follows("pass leased.positions of what next(lease) returned, not its rows, and each once")
def rows_for_positions(case: Case) -> None:
    loader = Dataloader(DATA[32:], 8, num_workers=0)
    with loader.lease() as lease:
        leased = next(lease)
        with case.refused(ArgumentError):
            lease.ack(leased.examples["x"])
        lease.ack(leased.positions)


@follows("go on with loader.lease(lease.get_state())")
def closed_lease(case: Case) -> None:
    loader = loader_of()
    lease = loader.lease()
    leased = next(lease)
    lease.close()
    with case.refused(ClosedError):
        next(lease)
    with loader.lease(lease.get_state()) as again:
        np.testing.assert_array_equal(next(again).positions, leased.positions)


@follows("pass a step (an int), or a state of get_state()…")
def start_of_a_file(case: Case) -> None:
    loader = loader_of()
    with case.refused(StateError), loader.iterate(start="state.json"):
        pass
    check_resumes(loader, 2, 2)
    check_resumes(loader, state_at(loader, 2), 2)
    text = json.dumps(state_at(loader, 2))
    with case.refused(StateError), loader.iterate(start=text):
        pass
    check_resumes(loader, json.loads(text), 2)


@follows("pass the record of MaskErrors(record=…)")
def missing_quarantine(case: Case) -> None:
    record = case.folder / "bad.jsonl"
    with case.refused(ArgumentError):
        loader_of(quarantine=record)

    def fails(row: Any) -> Any:
        if row["x"] == 11:
            raise ValueError("damaged")
        return row

    masked = Dataloader(DATA.map(fails), 8, num_workers=0, on_error=loadax.MaskErrors(record=record))
    with masked.iterate() as batches:
        assert sum(int(batch["mask"].sum()) for batch in batches) == 63
    assert not loader_of(quarantine=record)[1]["mask"][3]


@follows("open it as in the saved run, or repeat all rows before its step: loader.iterate(start=state['step'])")
def lane_without_set_state(case: Case) -> None:
    class Lane:
        def __init__(self) -> None:
            self.row = 0

        def __iter__(self) -> "Lane":
            return self

        def __next__(self) -> Any:
            if self.row == 32:
                raise StopIteration
            self.row += 1
            return {"x": np.int64(self.row)}

        def get_state(self) -> int:
            return self.row

    class WithState(Lane):
        def set_state(self, state: int) -> None:
            self.row = state

    def stream(kind: type[Lane]) -> Dataloader:
        return Dataloader(loadax.from_stream(lambda lane, lanes: kind(), lanes=2), 8, num_workers=0)

    with stream(WithState).iterate() as batches:
        first = [np.asarray(next(batches)["x"]).tolist() for _ in range(3)]
        state = batches.get_state()
        expected = np.asarray(next(batches)["x"]).tolist()
    assert first
    with case.refused(StateError), stream(Lane).iterate(start=state) as batches:
        next(batches)
    for kind, start in ((WithState, state), (Lane, state["step"])):
        with stream(kind).iterate(start=start) as batches:
            assert np.asarray(next(batches)["x"]).tolist() == expected
