"""The conformance kit: sources and maps that keep the contract pass, and an error names each law that is broken."""

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import loadax
from loadax.errors import ArgumentError, ConformanceError, LeafError, LoadaxError, RowIndexError, SourceError
from loadax.sources.arrays import ArraySource
from loadax.testing import check_map, check_source, contract as laws_of_sources, workers as laws_of_workers
from loadax.testing.laws import difference
from loadax.testing.workers import check_process
from tests.contract_sources import LEFT_BEHIND, SPEC, TREE, Elsewhere, Parts, put, take
from tests.faulty import FaultySource
from tests.limits import HANG, until
from tests.sources.chunked import ChunkedSource

Array = NDArray[Any]
ROOT = Path(__file__).parents[1]
VALUES = np.arange(1, 1 + 50 * 6 * 4, dtype=np.int32).reshape(50, 6, 4)
READS, COLUMNS, CLAIMS = "reads equal single ones", "read_into equals read", "claims"


def quick(source: Any, **others: Any) -> None:
    """The laws that need neither another process nor a loader."""
    check_source(source, **{"loader": False, "pickled": False, "rows": 16, **others})


def breaks(law: str, found: str = "") -> Any:
    """The contract follows the evidence."""
    return pytest.raises(ConformanceError, match=rf"breaks the law '{re.escape(law)}': (?=.*; \S+).*{found}")


# Sources that keep the contract.


def of_zarr(folder: Path) -> loadax.Dataset:
    loadax.write_zarr(VALUES, folder / "z", chunk_rows=4, shard_rows=8)
    return loadax.from_zarr(folder / "z")


def of_npy(folder: Path) -> Path:
    np.save(folder / "values.npy", VALUES)
    return folder / "values.npy"


NESTED = {"a": (np.arange(30) % 2 == 0, [np.arange(30, dtype=np.uint8)]), "b": np.linspace(0, 1, 30)}
GOOD: dict[str, Callable[[Path], Any]] = {
    "nested arrays": lambda _: NESTED,
    "big-endian": lambda _: VALUES.astype(">i4"),
    "NaN": lambda _: np.where(VALUES % 3 == 0, np.nan, VALUES).astype(jnp.bfloat16),
    "no columns": lambda _: {"x": np.zeros((5, 0, 3)), "y": np.arange(5)},
    "one row": lambda _: np.arange(1),
    "two rows": lambda _: np.arange(2),
    "slice of a memory map": lambda folder: np.load(of_npy(folder), mmap_mode="r")[3:-2, 1:],
    "npy": lambda folder: loadax.from_npy({"one": of_npy(folder), "other": of_npy(folder)}),
    "concat": lambda folder: loadax.concat([of_zarr(folder).shuffle(0)[3:], loadax.from_npy(of_npy(folder))]),
    "objects": lambda _: [{"x": np.full(3, row, np.float32), "y": row} for row in range(30)],
    "maps": lambda _: loadax.from_arrays(TREE).map(lambda e, rng: e["x"] + rng.random(), rng=True).shuffle(1),
    "FaultySource without faults": lambda _: FaultySource(ArraySource(TREE), {}),
    "read_into": lambda _: Parts(read_into=put, chunks=np.array([0, 10, 39]), concurrent_reads=4),
    "no spec": lambda _: Parts(spec=None, chunks=range(0, 40, 7)),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", GOOD)
def test_source_that_keeps_the_contract_passes(name: str, tmp_path: Path) -> None:
    check_source(GOOD[name](tmp_path))


def test_other_seeds_and_samples_pass_too() -> None:
    for seed in range(5):
        quick(Parts(read_into=put), seed=seed, rows=1 + seed)


def test_strings_and_objects_pass_without_a_loader_or_with_a_map() -> None:
    what = np.array([{"k": [1]}, None, np.nan, (1, 2)], object)
    source = ArraySource({"name": np.array(["a", "bb", "c", ""]), "what": what})
    quick(source)
    check_source(loadax.from_source(source).map(lambda example: {"length": len(example["name"])}), pickled=False)
    with breaks("it loads", r"raised LeafTypeError: leaf \['name'\] has dtype <U2.*; pass .* or loader=False$"):
        check_source(source, pickled=False)


def test_views_are_allowed_without_owns_memory() -> None:
    quick(Parts(views))


@pytest.mark.parametrize(
    "rows",
    [
        [np.int64(1), np.float64(2.5), np.bool_(True)],
        [{"words": ["ab"]}, {"words": ["ab", "c"]}],
        [np.arange(2), "text", {"x": 1.5}],
    ],
)
def test_rows_of_different_dtype_or_structure_keep_the_contract(rows: list[Any]) -> None:
    quick(rows)
    quick(loadax.concat([rows, rows]))


def test_maps_may_change_what_the_only_part_of_a_concat_claims() -> None:
    chunked = loadax.from_source(ChunkedSource(np.arange(12), 4))
    quick(loadax.concat([chunked.map(np.float32)]))
    quick(loadax.concat([loadax.from_source(list(range(5))).map_batch(lambda rows: rows + 1)]))


# Broken reads.


def views(rows: Array) -> Any:
    take(rows)
    run = len(rows) > 0 and (np.diff(rows) == 1).all()
    return {name: leaf[rows[0] : rows[-1] + 1] if run else leaf[rows] for name, leaf in TREE.items()}


def locked(rows: Array) -> Any:
    batch = take(rows)
    batch["x"].flags.writeable = False
    return batch


def increasing(rows: Array) -> Any:
    if (np.diff(rows) < 0).any():
        raise TypeError("indices must be in increasing order")
    return take(rows)


def not_repeatable() -> Callable[[Array], Any]:
    """Gives another answer when the same rows are read twice in a row."""
    last: list[Array] = [np.zeros(0)]

    def read(rows: Array) -> Any:
        batch = take(rows)
        batch["y"] += np.array_equal(last[0], rows) and len(rows) > 1
        last[0] = rows.copy()
        return batch

    return read


def reusing() -> Callable[[Array], Any]:
    buffers: dict[int, Any] = {}

    def read(rows: Array) -> Any:
        batch = take(rows)
        kept = buffers.setdefault(len(rows), batch)
        for name, leaf in batch.items():
            kept[name][...] = leaf
        return kept

    return read


def writes_to_rows(rows: Array) -> Any:
    batch = take(rows)
    rows[...] = 0
    return batch


def raises_key_error(rows: Array) -> Any:
    try:
        return take(rows)
    except IndexError:
        raise KeyError(int(rows[-1])) from None


def flat_when_empty(rows: Array) -> Any:
    return take(rows) if len(rows) else {"x": np.zeros(0, np.float32), "y": np.zeros(0, np.int32)}


BOTH_VALUES = (
    r"leaf \['x'\] of row \d+ \(entry \d+ of \d+\) at \[0\] is \S+, expected \S+, "
    r"the value of that row when it is read alone"
)
BROKEN_READS = {
    "sorted": (Parts(lambda rows: take(np.sort(rows))), READS, BOTH_VALUES),
    "increasing": (Parts(increasing), READS, r"read\(\[39, 38, .*, …\]\) raised TypeError: indices must be in incr"),
    "distinct": (Parts(lambda rows: take(np.unique(rows))), READS, r"leaf \['x'\]"),
    "not repeatable": (Parts(not_repeatable()), READS, r"leaf \['y'\] of row (\d+) .* is \d+, expected \d+"),
    "flat when empty": (Parts(flat_when_empty), READS, r"read\(\[\]\) gave leaf \['x'\] as float32\[0\] for 0 rows"),
    "reusing": (Parts(reusing()), "results stay", r"after later reads, in the first result of read\(\[.*\]\) leaf"),
    "views": (Parts(views, owns_memory=True), "results stay", r"shares memory with that of the next read"),
    "locked": (Parts(locked, owns_memory=True), "results stay", r"leaf \['x'\] of read\(\[0, .*\]\) can't be written"),
    "writes to rows": (Parts(writes_to_rows), "rows stay as they are", r"read\(\[.*\]\) changed them to \[0"),
    "wrapping": (
        Parts(lambda rows: {name: leaf[rows] for name, leaf in TREE.items()}),
        "rows out of range",
        r"read\(\[-1\]\), with len\(\) 40, returned dict",
    ),
    "clipping": (
        Parts(lambda rows: take(np.clip(rows, 0, 39))),
        "rows out of range",
        r"read\(\[40\]\), with len\(\) 40, returned dict",
    ),
    "KeyError": (Parts(raises_key_error), "rows out of range", r"read\(\[40\]\), with .* raised KeyError: 40"),
    "len 0": (Parts(size=lambda: 0), "length", r"three calls of len\(\) returned \[0, 0, 0\]"),
    "len that grows": (Parts(size=iter(range(3, 1000)).__next__), "length", r"len\(\) returned \[\d, \d, \d\]"),
    "chunks of two dims": (Parts(chunks=np.array([[0, 10]])), CLAIMS, r"Parts.chunks is array\(\[\[ 0, 10\]\]\)"),
    "chunks from 1": (Parts(chunks=np.array([1, 10])), CLAIMS, r"Parts.chunks is array\(\[ 1, 10\]\)"),
    "chunks that repeat": (Parts(chunks=np.array([0, 10, 10])), CLAIMS, r"Parts.chunks is array\(\[ 0, 10, 10\]\)"),
    "chunks beyond": (Parts(chunks=range(0, 41, 10)), CLAIMS, r"Parts.chunks is range\(0, 41, 10\); give the rows at"),
    "concurrent_reads": (Parts(concurrent_reads=0), CLAIMS, "concurrent_reads=0: pass 1 or more"),
}


@pytest.mark.parametrize("name", BROKEN_READS)
def test_broken_read_names_law_and_evidence(name: str) -> None:
    source, law, found = BROKEN_READS[name]
    with breaks(law, found):
        quick(source)
    np.testing.assert_array_equal(TREE["x"].ravel(), np.arange(120))


def test_length_that_reading_changes() -> None:
    reads = iter(range(10**6))
    source = Parts(lambda rows: (next(reads), take(rows))[1], size=lambda: 40 + (next(reads) > 40))
    with breaks("length", r"len\(\) was 40 at first, but 41 after some reads"):
        quick(source)


@pytest.mark.parametrize(
    ("read", "spec", "found"),
    [
        (take, 5, r"finding it raised ArgumentError: spec is 5: pass an object with a shape"),
        (take, SPEC["x"], r"read\(\[0\]\) gave the leaves \[\"\['x'\]\", \"\['y'\]\"\], expected \[''\]"),
        (take, {**SPEC, "x": np.zeros(4)}, r"leaf \['x'\] as float32\[1, 3\] for 1 row, expected float64\[1, 4\]"),
        (take, {**SPEC, "y": np.int64(0)}, r"leaf \['y'\] as int32\[1\] for 1 row, expected int64\[1\]"),
        (lambda rows: np.zeros((len(rows), 2 + rows[0] % 2)), None, r"read\(\[1\]\) gave leaf of the batch as float64"),
        (lambda rows: 1 / 0, None, r"finding it raised ZeroDivisionError: division by zero"),
        (lambda rows: next(iter(())), SPEC, r"read\(\[0\]\) raised StopIteration"),
    ],
)
def test_spec_that_differs_from_what_is_read(read: Any, spec: Any, found: str) -> None:
    with breaks("spec", found):
        quick(Parts(read, spec=spec))


# Broken columns.


def put_all(rows: Array, boxes: Any, out: Any) -> None:
    for leaf, destination in zip(take(rows).values(), out, strict=True):
        destination[...] = leaf[:, : destination.shape[1]] if leaf.ndim > 1 else leaf


def put_first_columns(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, [None if box is None else tuple((0, stop - start) for start, stop in box) for box in boxes], out)


def put_through(change: Callable[[Array], Array]) -> Callable[..., None]:
    return lambda rows, boxes, out: put(rows, boxes, [None if array is None else change(array) for array in out])


def put_beside(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, boxes, out)
    for array in out:
        if array is not None:
            base = array
            while base.base is not None:
                base = base.base
            base[-1] = 0


def put_into_the_gaps(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, boxes, out)
    for array in out:
        if array is not None and array.ndim == 1 and array.strides[0] > array.itemsize and len(array):
            np.lib.stride_tricks.as_strided(array, (2,), (array.itemsize,))[1] = 0


def put_some(rows: Array, boxes: Any, out: Any) -> None:
    if not len(rows):
        raise ValueError("nothing to put")
    put(rows, boxes, out)


def put_and_write_to_rows(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, boxes, out)
    rows[...] = 0


WHERE = r"in read_into\(\[.*\]\) with the boxes \[.*\] and destinations that are"
BROKEN_COLUMNS = {
    "all leaves": (put_all, "raised AttributeError|TypeError"),
    "first columns": (put_first_columns, rf"{WHERE} \S.* leaf \['x'\] of row \d+"),
    "flat": (put_through(lambda array: array.reshape(-1).reshape(array.shape)), f"{WHERE} not contiguous"),
    "aligned": (put_through(lambda array: np.require(array, requirements="A")), f"{WHERE} not aligned"),
    "no rows": (put_some, r"read_into\(\[\]\) raised ValueError: nothing to put"),
    "beside": (put_beside, r"are contiguous it wrote beside the destination of leaf \['x'\]"),
    "between": (put_into_the_gaps, r"are not contiguous it wrote beside .* leaf \['y'\]"),
}


@pytest.mark.parametrize("name", BROKEN_COLUMNS)
def test_broken_read_into_names_boxes_and_destination(name: str) -> None:
    read_into, found = BROKEN_COLUMNS[name]
    with breaks(COLUMNS, found):
        quick(Parts(read_into=read_into))


def test_read_into_that_writes_to_its_rows() -> None:
    with breaks("rows stay as they are", r"read_into\(\[.*\]\) changed them to \[0"):
        quick(Parts(read_into=put_and_write_to_rows))


# Threads.


def racing_over_rows() -> Callable[[Array], Any]:
    shared: list[Array] = [np.zeros(0)]

    def read(rows: Array) -> Any:
        shared[0] = rows
        time.sleep(1e-4)
        return take(shared[0])

    return read


def racing_for_a_buffer() -> Callable[[Array], Any]:
    buffer = np.empty((100, 3), np.float32)

    def row_of_x(row: int) -> Array:  # a call, which is where the law lets another thread run
        return TREE["x"][row]

    def read(rows: Array) -> Any:
        for entry, row in enumerate(rows.tolist()):
            buffer[entry] = row_of_x(row)
        return {**take(rows), "x": buffer[: len(rows)].copy()}

    return read


def of_one_thread() -> Callable[[Array], Any]:
    owner = threading.get_ident()

    def read(rows: Array) -> Any:
        if threading.get_ident() != owner:
            raise RuntimeError("created in another thread")
        return take(rows)

    return read


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (racing_over_rows, ""),
        (racing_for_a_buffer, r"leaf \['x'\]"),
        (of_one_thread, "raised RuntimeError: created in another thread"),
    ],
)
def test_source_that_is_not_thread_safe(make: Callable[[], Any], found: str) -> None:
    with breaks("threads", found):
        quick(Parts(make()))


def test_random_state_and_profiler_of_the_program_are_kept() -> None:
    before, hook = random.getstate(), sys.getprofile()
    quick(Parts(take))
    assert random.getstate() == before
    assert sys.getprofile() is hook


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What a broken source waits for; set at the test's end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """To be set by the code that hangs: only then has the time of threads run out."""
    event = threading.Event()

    def wait_until_stuck(futures: Any, timeout: float, when: str) -> Any:
        until(lambda: event.is_set() or all(future.done() for future in futures))
        return wait(futures, 0.0, when)

    monkeypatch.setattr(laws_of_workers, "wait", wait_until_stuck)
    return event


def test_deadlock_is_an_error(never: threading.Event, stuck: threading.Event) -> None:
    lock = threading.Lock()

    def read(rows: Array) -> Any:
        if not lock.acquire(blocking=False):
            stuck.set()
            never.wait()
            return take(rows)
        time.sleep(1e-3)
        lock.release()
        return take(rows)

    with breaks("threads", r"not done after 120 s \(a deadlock"):
        quick(Parts(read), timeout=HANG)


# Processes.


@pytest.mark.processes
def test_prints_of_a_source_in_a_fresh_process_are_ignored() -> None:
    quick(Elsewhere("print"), pickled=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("what", "timeout", "found"),
    [
        ("other", HANG, r"in a fresh process, in read\(.*\) leaf \['y'\] of row \d+ .* is \d+, expected \d+"),
        ("wide", HANG, r"read\(.*\) gave leaf \['y'\] as int64\[16\]"),
        ("not opened", HANG, r"ended with code 1: it raised FileNotFoundError: no such file: /nowhere"),
        ("die", HANG, r"a fresh process that read it ended with code 3"),
        ("hang with a child", 2, r"a fresh process had not read it after 2 s \(a deadlock"),
    ],
)
def test_source_that_fails_in_a_fresh_process(
    what: str, timeout: float, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A short limit is that of the fresh process alone.
    monkeypatch.setattr(laws_of_sources, "check_process", lambda subject, _: check_process(subject, timeout))
    with breaks("fresh process", found):
        quick(Elsewhere(what), pickled=True, timeout=HANG)
    until(lambda: not any(map(_is_left_behind, psutil.process_iter())))


def _is_left_behind(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(LEFT_BEHIND in word for word in process.cmdline())
    except psutil.Error:
        return False


def test_source_that_holds_a_lock_passes_with_pickled_false() -> None:
    source = Elsewhere("print")
    source.__dict__["lock"] = threading.Lock()
    with breaks("fresh process", r"pickling it raised TypeError: cannot pickle .*pickled=False to skip this check$"):
        quick(source, pickled=True)
    quick(source)


SCRIPT = """
import numpy as np
from loadax.testing import check_source

class Mine:
    spec = np.zeros((), np.int64)
    def __len__(self):
        return 5
    def read(self, rows):
        if len(rows) and not 0 <= rows.min() <= rows.max() < 5:
            raise IndexError(rows)
        return np.array(rows)

print("once")
check_source(np.arange(12), loader=False)
check_source(Mine(), loader=False, pickled=False)
check_source(Mine(), loader=False)
"""


@pytest.mark.processes
@pytest.mark.parametrize("notebook", [False, True])
def test_source_of_a_script_without_main_guard_or_file(notebook: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, *(["-c", SCRIPT] if notebook else [str(tmp_path / "script.py")])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=HANG
    )
    assert run.stdout == "once\n"
    law = r"Mine breaks the law 'fresh process': .*__main__.*: define it at the top level of a module of its own"
    assert re.search(law, run.stderr), run.stderr


# Runs through a loader.


def under(name: str) -> bool:
    """Whether a function of the loader of that name is on this thread's stack."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == name and frame.f_code.co_filename.endswith("dataloader.py"):
            return True
    return False


def adding(when: Callable[[], bool]) -> loadax.Dataset:
    return loadax.from_arrays(TREE).map_batch(lambda batch: {**batch, "y": batch["y"] + when()}, spec=SPEC)


def drifting() -> loadax.Dataset:
    calls = iter(range(10**6))
    return loadax.from_arrays(TREE).map(lambda example: {**example, "y": np.int32(next(calls))}, spec=SPEC)


def on_a_worker() -> bool:
    return threading.current_thread().name.startswith("loadax-worker")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (drifting(), r"in step \d+, resumed at step \d+, leaf \['y'\] of row \d+ .* as in the uninterrupted run"),
        (adding(lambda: under("__getitem__")), r"in step 0, read by loader\[0\], leaf \['y'\] of row \d+"),
        (adding(on_a_worker), r"in step \d+, with num_workers=1 instead of 0, leaf \['y'\]"),
        (adding(lambda: under("host_batch")), r"in step 0, put together from .* leaf \['y'\]"),
    ],
)
def test_run_that_depends_on_more_than_the_step(data: Any, found: str) -> None:
    with breaks("a batch follows from its step", found):
        check_source(data, pickled=False)


def test_run_that_never_ends(never: threading.Event, stuck: threading.Event) -> None:
    def waits(batch: Any) -> Any:
        if on_a_worker():
            stuck.set()
            never.wait()
        return batch

    with breaks("it loads", r"a Dataloader had not returned all batches after 120 s"):
        check_source(loadax.from_arrays(TREE).map_batch(waits, spec=SPEC), pickled=False, timeout=HANG)


def test_invalid_arguments_of_check_source() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rows": 0}, "rows=0: pass 1 or more"),
        ({"timeout": 0}, "timeout=0: pass seconds, more than 0"),
        ({"source": {1, 2}}, "the data is a set, which can only be iterated over"),
    ]
    for arguments, message in cases:
        with pytest.raises(ArgumentError, match=message):
            check_source(**{"source": TREE, **arguments})
    assert issubclass(ConformanceError, AssertionError)
    assert issubclass(ConformanceError, LoadaxError)


def test_sample_has_both_ends_and_the_requested_size() -> None:
    asked: set[int] = set()

    def read(rows: Array) -> Any:
        if len(rows) and not 0 <= rows.min() <= rows.max() < 10_000:
            raise IndexError
        asked.update(rows.tolist())
        return rows * 2

    quick(Parts(read, spec=np.int64(0), size=lambda: 10_000), rows=32)
    assert {0, 1, 9998, 9999} <= asked
    assert 28 <= len(asked) <= 32


# Comparison.


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, -np.nan]), None),
        (np.array([0.0]), np.array([-0.0]), "the leaf of row 10 (entry 0 of 1) is 0.0, expected -0.0"),
        (np.array(["NaT", 3], "M8[s]"), np.array(["NaT", 3], "M8[s]"), None),
        (np.array([1, 2], jnp.bfloat16), np.array([1, 3], jnp.bfloat16), "row 11 (entry 1 of 2) is 2.0, expected 3.0"),
        (np.array([np.nan], jnp.bfloat16), np.array([np.nan], jnp.bfloat16), None),
        (np.zeros((1, 2, 2)), np.array([[[0, 0], [0, 5]]], float), "(entry 0 of 1) at [1, 1] is 0.0, expected 5.0"),
        (np.zeros(2, np.int32), np.zeros(2, np.int64), "the leaf is int32[2], expected int64[2]"),
        (np.zeros(2), np.zeros((2, 1)), "the leaf is float64[2], expected float64[2, 1]"),
        (np.array(["a"]), np.array(["a", "bb"])[:1], None),
        (np.array(["a"]), np.array(["b"], object), "expected 'b'"),
        (np.array([None, {"k": np.arange(3)}], object), np.array([None, {"k": np.arange(3)}], object), None),
        (np.array([[1.0]], object), np.array([["x" * 999]], object), "is 1.0, expected 'xxx"),
        (np.array([threading.Lock()], object), np.array([threading.Lock()], object), "is <unlocked"),
        (np.zeros((2, 0)), np.zeros((2, 0)), None),
    ],
)
def test_difference_of_two_leaves(one: Array, other: Array, found: str | None) -> None:
    message = difference([one], [other], [""], [10, 11])
    assert message is None if found is None else message is not None and found in message
    assert message is None or len(message) < 300


def test_structured_rows_are_compared_by_their_fields() -> None:
    padded = np.dtype({"names": ["a", "b"], "formats": ["u1", "i4"], "offsets": [0, 4], "itemsize": 8})
    one, other = np.full(16, 0, np.uint8).view(padded), np.full(16, 0, np.uint8)
    other[1] = 9  # between the fields
    assert difference([one], [other.view(padded)], ["['r']"], [0, 1]) is None
    other[12] = 9
    assert "leaf ['r'] of row 1" in str(difference([one], [other.view(padded)], ["['r']"], [0, 1]))


# Maps.

EXAMPLES: dict[str, Array] = {"x": np.arange(1, 31, dtype=np.float32).reshape(10, 3), "y": np.arange(10)}
BUFFER = np.zeros((100, 3))
NOISE = np.random.default_rng(0)


def in_place(batch: Any) -> Any:
    batch["x"] *= 2
    return batch


GOOD_MAPS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "same": (lambda batch: batch, {}),
    "in place": (in_place, {}),
    "by row": (lambda batch: (batch["x"] - batch["x"].mean(axis=1, keepdims=True), np.sort(batch["x"])), {}),
    "NaN": (lambda batch: np.where(batch["x"] > 4, np.nan, batch["x"]), {}),
    "strings": (lambda batch: np.array([str(value) for value in batch["y"]]), {}),
    "random": (lambda batch, rngs: [batch["y"] + np.array([rng.random() for rng in rngs])], {"rng": True}),
    "rows": (lambda batch, rows: batch["y"] + rows, {"with_index": True}),
    "epochs": (lambda batch, epochs: batch["y"] + epochs, {"with_epoch": True}),
}


@pytest.mark.parametrize("name", GOOD_MAPS)
def test_map_of_independent_rows_passes(name: str) -> None:
    fn, options = GOOD_MAPS[name]
    before = {path: leaf.copy() for path, leaf in EXAMPLES.items()}
    for seed in range(3):
        check_map(fn, EXAMPLES, seed=seed, **options)
    check_map(fn, {path: leaf[:2] for path, leaf in EXAMPLES.items()}, **options)
    for path, leaf in EXAMPLES.items():
        np.testing.assert_array_equal(leaf, before[path])


def not_alone(batch: Any) -> Any:
    if len(batch["x"]) < 2:
        raise ValueError("too few")
    return batch["x"]


def buffering(batch: Any) -> Any:
    out = BUFFER[: len(batch["x"])]
    out[...] = batch["x"]
    return out


BROKEN_MAPS: dict[str, tuple[Callable[..., Any], str]] = {
    "too few": (lambda batch: batch["x"][:-1], r"for 10 rows it returned leaf given of shape \[9, 3\]"),
    "one value": (lambda batch: {"s": batch["x"].sum()}, r"returned leaf \['s'\] of shape \[\]"),
    "squeezed": (lambda batch: batch["x"].squeeze(), r"the leaf is float32\[3\], expected float32\[1, 3\]"),
    "noisy": (
        lambda batch: batch["x"] + NOISE.random(),
        r"the leaf of row 0 \(entry 0 of 10\) at \[0\] is \S+, expected \S+",
    ),
    "mean": (lambda batch: batch["x"] - batch["x"].mean(), r"called with the rows \[0\], the leaf of row 0"),
    "not alone": (not_alone, r"the rows \[0\], which raised ValueError: too few"),
    "by entry": (lambda batch: batch["y"] + np.arange(len(batch["y"])), r"row 9 \(entry 0 of 1\) is 9, expected 18"),
    "neither one nor all": (lambda batch: batch["x"] + (1 < len(batch["x"]) < 10), "called with the rows"),
    "sorting": (lambda batch: np.sort(batch["x"], axis=0), "called with the rows"),
    "repeats": (lambda batch: batch["x"] + len(batch["y"]) - len(set(batch["y"].tolist())), "called with the rows"),
    "other leaves": (
        lambda batch: batch if len(batch["x"]) > 1 else batch["x"],
        r"called with the rows \[0\] it returned the leaves \[''\], else \[\"\['x'\]\"",
    ),
    "other dtype": (
        lambda batch: batch["y"].astype(np.int32 if batch["y"].any() else np.int64),
        r"the leaf is int64\[1\], expected int32\[1\]",
    ),
}


@pytest.mark.parametrize("name", BROKEN_MAPS)
def test_map_that_mixes_rows_shows_them(name: str) -> None:
    fn, found = BROKEN_MAPS[name]
    with breaks("each row by itself", found):
        check_map(fn, EXAMPLES)


def test_map_that_mixes_generators_or_row_numbers_or_reuses_its_result() -> None:
    with breaks("each row by itself", "row 9"):
        check_map(lambda batch, rngs: batch["y"] + rngs[0].random(), EXAMPLES, rng=True)
    with breaks("each row by itself"):
        check_map(lambda batch, rows: batch["y"] + rows.min(), EXAMPLES, with_index=True)
    with breaks("results stay", "after later calls, in the first call's result the leaf of row"):
        check_map(buffering, EXAMPLES)


def test_rtol_allows_floats_that_differ_a_little() -> None:
    def nearly(batch: Any) -> Any:
        return np.where(batch["y"] == 3, np.nan, batch["y"] * (1 + 1e-9 * len(batch["x"])))

    check_map(nearly, EXAMPLES, rtol=1e-6)
    for fn, rtol in ((nearly, 0.0), (lambda batch: batch["y"] + len(batch["y"]), 1e-6)):
        with breaks("each row by itself"):
            check_map(fn, EXAMPLES, rtol=rtol)


def test_error_of_a_map_for_all_rows_is_raised_unchanged() -> None:
    with pytest.raises(KeyError, match="z") as caught:
        check_map(lambda batch: batch["z"], EXAMPLES)
    assert "loadax: in map_batch" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("fn", "examples", "error", "message"),
    [
        (lambda batch: None, EXAMPLES, LeafError, "returned None; did you forget to return the batch"),
        (5, EXAMPLES, ArgumentError, "fn=5 can't be called; pass a function of a batch"),
        (len, np.zeros(1), ArgumentError, "examples has rows: 1; pass two or more"),
        (len, {"x": [1, 2]}, SourceError, r"leaf \['x'\]\[0\] is int 1, not an array"),
    ],
)
def test_invalid_arguments_of_check_map(fn: Any, examples: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_map(fn, examples)


# Faults.


def test_faulty_rows_fail_as_often_as_requested() -> None:
    source = FaultySource(ArraySource(TREE), {3: OSError("gone"), 5: ValueError("bad")}, times=2)
    for rows, error in (([3], OSError), ([1, 5, 3], ValueError), ([3, 5], OSError), ([5], ValueError)):
        with pytest.raises(error):
            source.read(np.array(rows))
    assert source.read(np.array([3, 5]))["y"].tolist() == [10, 12]
    assert [rows.tolist() for rows in source.reads] == [[3], [1, 5, 3], [3, 5], [5], [3, 5]]
    lasting = FaultySource(ArraySource(TREE), {3: OSError("gone")})
    for _ in range(5):
        with pytest.raises(OSError, match="gone"):
            lasting.read(np.array([3]))


def test_faults_reach_the_loop_and_nothing_accumulates_on_them() -> None:
    failure = OSError("gone")
    source = FaultySource(ArraySource(TREE), {30: failure})
    for _ in range(2):
        with loadax.Dataloader(source, batch_size=8).iterate() as batches:
            for _ in range(3):
                next(batches)
            with pytest.raises(OSError, match="gone"):
                next(batches)
    assert not hasattr(failure, "__notes__")
    assert failure.__traceback__ is None


def test_faulty_source_claims_what_its_source_claims() -> None:
    inner = Parts(read_into=put, chunks=np.array([0, 9]), concurrent_reads=3, owns_memory=True)
    source, out = FaultySource(inner, {1: OSError("gone")}), np.zeros(1, np.int32)
    assert (source.spec, len(source), source.traits.concurrent_reads) == (SPEC, 40, 3)
    assert source.chunks is inner.chunks
    source.read_into(np.array([2]), [None, ()], [None, out])
    assert out.tolist() == [9]
    with pytest.raises(OSError, match="gone"):
        source.read_into(np.array([1]), [None, ()], [None, out])
    assert len(source.reads) == 2
    assert not FaultySource(Parts(), {}).traits.reads_columns
    assert repr(FaultySource(ArraySource(TREE), {3: OSError()})) == "arrays in memory with 1 faulty rows"


@pytest.mark.parametrize("data", [loadax.from_arrays(TREE), TREE, [{"x": leaf} for leaf in TREE["x"]]])
def test_datasets_and_objects_can_be_faulty_too(data: Any) -> None:
    source = FaultySource(data, {4: OSError("gone")}, times=1)
    with pytest.raises(OSError, match="gone"):
        source.read(np.array([4]))
    np.testing.assert_array_equal(source.read(np.array([4]))["x"], TREE["x"][[4]])


@pytest.mark.parametrize(
    ("failures", "times", "message"),
    [
        ({40: OSError()}, None, r"failures\[40\]=OSError\(\): pass rows from 0 to 39, with an exception each, such as"),
        ({-1: OSError()}, None, r"failures\[-1\]"),
        ({1: OSError}, None, r"failures\[1\]=<class 'OSError'>: pass rows .* with an exception each"),
        ({1: OSError()}, 0, "times=0: pass 1 or more, or None for all reads"),
    ],
)
def test_invalid_faults(failures: Any, times: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        FaultySource(ArraySource(TREE), failures, times)


def test_faulty_source_leaves_rows_out_of_range_to_its_source() -> None:
    with pytest.raises(RowIndexError, match="row 40 is out of range"):
        FaultySource(ArraySource(TREE), {}).read(np.array([40]))
