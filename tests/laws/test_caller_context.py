"""Maps see the context variables and JAX settings of the caller, whichever way rows are read."""

import contextvars
import decimal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataloader, Dataset, from_arrays
from loadax.core.context import Caller
from tests.limits import HANG

LEVEL = contextvars.ContextVar("level", default=1)
ROWS = 32


def seen(dataset: Dataset, **options: Any) -> Dataloader:
    return Dataloader(dataset, 8, **options)


def warmed_up(loader: Dataloader) -> Any:
    loader.warmup()
    return list(loader)


def filtered(dataset: Dataset) -> Any:
    return list(seen(dataset.filter(lambda _: True)))


WAYS: dict[str, Callable[[Dataset, Path], Any]] = {
    "no workers": lambda data, _: list(seen(data, num_workers=0)),
    "threads": lambda data, _: list(seen(data, num_workers=3)),
    "autotuned": lambda data, _: list(seen(data)),
    "loader[t]": lambda data, _: [seen(data)[step] for step in range(4)],
    "host_batch": lambda data, _: [seen(data).host_batch(step) for step in range(4)],
    "host_batches": lambda data, _: list(seen(data).host_batches()),
    "warmup": lambda data, _: warmed_up(seen(data)),
    "keep_on_device": lambda data, _: list(seen(data, keep_on_device=True)),
    "mask": lambda data, _: list(seen(data, on_error="mask")),
    "ds[i]": lambda data, _: [data[row] for row in range(ROWS)],
    "filter": lambda data, _: filtered(data),
    "split_by": lambda data, _: len(data.split_by(lambda row: int(row["x"]) % 4, 0.5)[0]),
    "pack": lambda data, _: data.map(lambda row: np.full(2, row["x"])).pack(8)[0],
    "cache": lambda data, folder: data.cache(folder / "cache")[0],
    "write_zarr": lambda data, folder: loadax.write_zarr(data, folder / "store.zarr"),
}


@pytest.mark.parametrize("way", WAYS)
def test_maps_see_context_variables_of_the_caller(way: str, tmp_path: Path) -> None:
    levels = []

    def note(row: Any) -> Any:
        levels.append((LEVEL.get(), decimal.getcontext().prec, np.geterr()["over"]))
        return row

    data = from_arrays({"x": np.arange(ROWS, dtype=np.float32)}).map(note)
    token = LEVEL.set(3)
    try:
        with np.errstate(over="raise"), decimal.localcontext(prec=5):
            WAYS[way](data, tmp_path)
    finally:
        LEVEL.reset(token)
    assert len(levels) >= ROWS
    assert set(levels) == {(3, 5, "raise")}


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "jax_default_device": lambda: jax.default_device(jax.devices()[3]),
    "jax_enable_x64": lambda: jax.enable_x64(True),
    "jax_default_prng_impl": lambda: jax.default_prng_impl("rbg"),
    "jax_default_matmul_precision": lambda: jax.default_matmul_precision("float32"),
    "jax_numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "jax_debug_nans": lambda: jax.debug_nans(True),
    "jax_debug_infs": lambda: jax.debug_infs(True),
    "jax_disable_jit": jax.disable_jit,
    "jax_transfer_guard": lambda: jax.transfer_guard("log"),
    "jax_transfer_guard_device_to_host": lambda: jax.transfer_guard_device_to_host("disallow"),
    "jax_threefry_partitionable": lambda: jax.threefry_partitionable(False),
    "jax_check_tracer_leaks": jax.checking_leaks,
}


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
def test_maps_see_jax_settings_of_the_caller(setting: str, options: dict[str, Any]) -> None:
    values = []

    def note(row: Any) -> Any:
        values.append(getattr(jax.config, setting))
        return row

    with SETTINGS[setting]():
        wanted = getattr(jax.config, setting)
        got = list(seen(from_arrays({"x": np.arange(ROWS, dtype=np.float32)}).map(note), **options))
    assert set(values) == {wanted} != {getattr(jax.config, setting)}
    np.testing.assert_array_equal(np.concatenate([np.asarray(batch["x"]) for batch in got]), np.arange(ROWS))


@pytest.mark.parametrize("workers", [0, 2])
def test_context_is_that_of_iter_until_the_end(workers: int) -> None:
    levels = []

    def note(row: Any) -> Any:
        levels.append((LEVEL.get(), getattr(jax.config, "jax_debug_nans")))  # noqa: B009 - mypy does not know it
        return row

    def begin() -> Any:
        LEVEL.set(3)
        return iter(loader)

    loader = seen(from_arrays(np.arange(ROWS)).map(note), num_workers=workers, prefetch=0)
    with jax.debug_nans(True):
        batches = contextvars.copy_context().run(begin)
    levels.clear()  # of the probe
    next(batches)
    batches.set_state(batches.get_state())
    assert [len(batch) for batch in batches] == [8, 8, 8]
    assert set(levels) == {(3, True)}
    assert LEVEL.get() == 1


def test_rows_of_a_stream_are_read_in_the_context_of_the_caller() -> None:
    levels = []

    def rows(lane: int, lanes: int) -> Any:
        for row in range(ROWS):
            levels.append(LEVEL.get())
            yield np.float32(row)

    token = LEVEL.set(3)
    try:
        assert len(list(seen(loadax.from_stream(rows, lanes=1)))) == ROWS // 8
    finally:
        LEVEL.reset(token)
    assert set(levels) == {3}


def test_caller_runs_on_several_threads_at_once() -> None:
    caller, barrier, results = Caller(), threading.Barrier(3), []
    threads = [
        threading.Thread(target=caller.run, args=(lambda: results.append(barrier.wait(HANG)),)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2]


@pytest.mark.processes
def test_worker_processes_get_values_of_context_variables_of_scripts() -> None:
    level, default, unset = (
        contextvars.ContextVar("level", default=1),
        contextvars.ContextVar("default", default=2),
        contextvars.ContextVar[int]("unset"),
    )

    def note(row: Any) -> Any:
        return {"x": row, "seen": np.array([level.get(), default.get(), unset.get(7), np.geterr()["over"] == "raise"])}

    level.set(3)
    with np.errstate(over="raise"):
        loader = seen(from_arrays(np.arange(ROWS)).map(note), worker_type="process", num_workers=1)
        got = np.concatenate([np.asarray(batch["seen"]) for batch in loader])
    np.testing.assert_array_equal(got, [[3, 2, 7, 0]] * ROWS)


CHANGED: dict[str, Any] = {
    "jax_transfer_guard": "disallow_explicit",
    "jax_transfer_guard_host_to_device": "disallow",
    "jax_transfer_guard_device_to_device": "disallow_explicit",
    "jax_enable_x64": True,
    "jax_default_device": 3,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_default_matmul_precision": "highest",
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_disable_jit": True,
    "jax_check_tracer_leaks": True,
    "jax_default_prng_impl": "rbg",
}
LOADERS: dict[str, dict[str, Any]] = {
    "threads, keys, mask and microbatches": {"num_workers": 2, "key_seed": 1, "remainder": "pad", "microbatches": 2},
    "no workers": {"num_workers": 0},
    "keep_on_device": {"keep_on_device": True},
    "device_map": {"device_map": lambda row: {**row, "x": row["x"] * 2}},
}


@contextmanager
def whole_process(setting: str) -> Iterator[None]:
    """The setting of all threads, as a program or a notebook cell sets it."""
    before, value = getattr(jax.config, setting), CHANGED[setting]
    jax.config.update(setting, jax.devices()[value] if setting == "jax_default_device" else value)
    try:
        yield
    finally:
        jax.config.update(setting, before)


def this_thread(setting: str) -> AbstractContextManager[None]:
    value, name = CHANGED[setting], setting.removeprefix("jax_")
    if setting == "jax_check_tracer_leaks":
        return jax.checking_leaks()
    return getattr(jax, name)(jax.devices()[value] if name == "default_device" else value)


@pytest.mark.parametrize("change", [whole_process, this_thread])
@pytest.mark.parametrize("options", LOADERS)
@pytest.mark.parametrize("setting", CHANGED)
def test_settings_that_change_during_a_run_change_no_batch(setting: str, options: str, change: Any) -> None:
    x = np.arange(64, dtype=np.float32)
    x[60], x[61] = np.nan, np.inf
    loader = Dataloader(from_arrays({"x": x, "n": np.arange(64)}), 16, num_epochs=3, prefetch=1, **LOADERS[options])
    expected = [jax.tree.map(np.asarray, batch) for batch in loader.iterate()]
    batches = loader.iterate()
    got = [next(batches)]
    with change(setting):
        got += [next(batches) for _ in range(7)]
        inside = [next(loader.iterate(start=6)), loader[6]]  # begun under the setting
    got += batches
    for batch, wanted in zip([*got, *inside], [*expected, expected[6], expected[6]], strict=True):
        for name, leaf in wanted.items():
            if setting != "jax_enable_x64" or batch[name].dtype == leaf.dtype:
                assert batch[name].dtype == leaf.dtype
            np.testing.assert_array_equal(np.asarray(batch[name]), leaf)
