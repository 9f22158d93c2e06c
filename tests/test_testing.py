"""The conformance kit: sources and maps that keep the contract pass, and each one that breaks a law is told which."""

import itertools
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import psutil
import pytest
import tensorstore as ts
from numpy.typing import NDArray

import loadax
from loadax.errors import ArgumentError, ConformanceError, LeafError, LoadaxError, RowIndexError, SourceError
from loadax.sources.arrays import ArraySource
from loadax.testing import FaultySource, check_map, check_source
from loadax.testing import sources as laws_of_sources
from loadax.testing import threads as laws_of_threads
from loadax.testing.comparison import difference
from loadax.testing.processes import check_process
from tests.contract_sources import LEFT_BEHIND, SPEC, TREE, Elsewhere, Parts, put, take
from tests.limits import HANG, until
from tests.sources.chunked import ChunkedSource

Array = NDArray[Any]
ROOT = Path(__file__).parents[1]
VALUES = np.arange(1, 1 + 50 * 6 * 4, dtype=np.int32).reshape(50, 6, 4)


def quick(source: Any, **others: Any) -> None:
    """The laws that need neither another process nor a loader."""
    check_source(source, **{"loader": False, "pickled": False, "rows": 16, **others})


def breaks(law: str, found: str = "") -> Any:
    """A contract follows what was found."""
    return pytest.raises(ConformanceError, match=rf"breaks the law '{re.escape(law)}': (?=.*; \S+).*{found}")


# What keeps the contract.


def store(folder: Path, driver: str, values: Any = VALUES) -> Path:
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}}
    layout = ts.ChunkLayout(chunk_shape=[4, 3, 2])
    ts.open(spec, create=True, dtype=values.dtype, shape=values.shape, chunk_layout=layout).result().write(
        values
    ).result()
    return folder


def saved(folder: Path, values: Any = VALUES) -> Path:
    np.save(folder / "values.npy", values)
    return folder / "values.npy"


def everything(folder: Path) -> list[loadax.Dataset]:
    parts = loadax.from_arrays(VALUES), loadax.from_npy(saved(folder)), loadax.from_zarr(store(folder / "z", "zarr3"))
    return [each.shuffle(number)[3:] for number, each in enumerate(parts)]


GOOD: dict[str, Callable[[Path], Any]] = {
    "a dict of arrays": lambda _: TREE,
    "nested arrays": lambda _: {
        "a": (np.arange(30) % 2 == 0, [np.arange(30, dtype=np.uint8)]),
        "b": np.linspace(0, 1, 30),
    },
    "big-endian": lambda _: VALUES.astype(">i4"),
    "fortran": lambda _: np.asfortranarray(VALUES),
    "not a number": lambda _: np.where(VALUES % 3 == 0, np.nan, VALUES).astype(np.float32),
    "bfloat16": lambda _: VALUES.astype(jnp.bfloat16),
    "no columns": lambda _: {"x": np.zeros((5, 0, 3)), "y": np.arange(5)},
    "each row by itself": lambda _: np.arange(1),
    "two rows": lambda _: np.arange(2),
    "memory-mapped": lambda folder: np.load(saved(folder), mmap_mode="r"),
    "a slice of a map": lambda folder: np.load(saved(folder), mmap_mode="r")[3:-2, 1:],
    "npy": lambda folder: loadax.from_npy({"one": saved(folder), "other": saved(folder)}),
    "zarr": lambda folder: loadax.from_zarr(store(folder / "z", "zarr")),
    "zarr3": lambda folder: loadax.from_zarr(store(folder / "z", "zarr3")),
    "n5": lambda folder: loadax.from_tensorstore(
        {"driver": "n5", "kvstore": {"driver": "file", "path": f"{store(folder / 'n', 'n5')}/"}}
    ),
    "objects": lambda _: [{"x": np.full(3, row, np.float32), "y": row} for row in range(30)],
    "concatenated": lambda folder: loadax.concat(everything(folder)),
    "a dataset with maps": lambda _: (
        loadax.from_arrays(TREE).map(lambda e, rng: e["x"] + rng.random(), rng=True).shuffle(1)
    ),
    "faulty, without faults": lambda _: FaultySource(ArraySource(TREE), {}),
    "parts": lambda _: Parts(),
    "parts with columns": lambda _: Parts(read_into=put, chunks=np.array([0, 10, 39]), concurrent_reads=4),
    "no spec": lambda _: Parts(spec=None, chunks=range(0, 40, 7)),
}


@pytest.mark.processes
@pytest.mark.parametrize("make", GOOD.values(), ids=GOOD.keys())
def test_what_keeps_the_contract_passes(make: Callable[[Path], Any], tmp_path: Path) -> None:
    check_source(make(tmp_path))


def test_other_seeds_and_samples_pass_too() -> None:
    for seed in range(5):
        quick(Parts(read_into=put), seed=seed, rows=1 + seed)


@pytest.mark.processes
def test_strings_and_objects_pass_without_a_loader_or_with_a_map() -> None:
    source = ArraySource(
        {"name": np.array(["a", "bb", "c", ""]), "what": np.array([{"k": [1]}, None, np.nan, (1, 2)], object)}
    )
    check_source(source, loader=False)
    check_source(loadax.from_source(source).map(lambda example: {"length": len(example["name"])}))
    with breaks(
        "it loads",
        r"a Dataloader over it raised LeafTypeError: leaf \['name'\] has dtype <U2.*; pass .* or loader=False$",
    ):
        check_source(source, pickled=False)


def test_views_are_allowed_where_owned_memory_is_not_claimed() -> None:
    quick(Parts(views))


# What doesn't: reads.


def views(rows: Array) -> Any:
    take(rows)
    run = len(rows) > 0 and (np.diff(rows) == 1).all()
    return {name: leaf[rows[0] : rows[-1] + 1] if run else leaf[rows] for name, leaf in TREE.items()}


def locked(rows: Array) -> Any:
    batch = take(rows)
    batch["x"].flags.writeable = False
    return batch


def off_by_one(rows: Array) -> Any:
    take(rows)
    return take((rows + (len(rows) > 1)) % 40)


def increasing(rows: Array) -> Any:
    if (np.diff(rows) < 0).any():
        raise TypeError("indices must be in increasing order")
    return take(rows)


def distinct(rows: Array) -> Any:
    if len(set(rows.tolist())) < len(rows):
        raise TypeError("indices must be distinct")
    return take(rows)


def without_repeats(rows: Array) -> Any:
    return take(rows[np.sort(np.unique(rows, return_index=True)[1])])


def impatient() -> Callable[[Array], Any]:
    """Another answer when the same question comes twice in a row."""
    last: list[Array] = [np.zeros(0)]

    def read(rows: Array) -> Any:
        batch = take(rows)
        if np.array_equal(last[0], rows) and len(rows) > 1:
            batch["y"] = batch["y"] + 1
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


def using_up(rows: Array) -> Any:
    batch = take(rows)
    rows[...] = 0
    return batch


def wrapping(rows: Array) -> Any:
    return {name: leaf[rows] for name, leaf in TREE.items()}


def clipping(rows: Array) -> Any:
    return take(np.clip(rows, 0, 39))


def keyed(rows: Array) -> Any:
    try:
        return take(rows)
    except IndexError:
        raise KeyError(int(rows[-1])) from None


def nothing_for_none(rows: Array) -> Any:
    return take(rows) if len(rows) else {"x": np.zeros(0, np.float32), "y": np.zeros(0, np.int32)}


def failing_on_none(rows: Array) -> Any:
    return take(np.arange(rows.min(), rows.max() + 1)) if len(rows) == 1 else take(rows[rows >= rows.min()])


ONE_OF_TWO = (
    r"leaf \['x'\] of row \d+ \(entry \d+ of \d+\) at \[0\] is \S+, expected \S+, "
    r"the value of that row when it is read alone"
)

BROKEN_READS = {
    "batched": (Parts(off_by_one), "reads equal single ones", ONE_OF_TWO),
    "sorted": (Parts(lambda rows: take(np.sort(rows))), "reads equal single ones", ONE_OF_TWO),
    "increasing": (
        Parts(increasing),
        "reads equal single ones",
        r"read\(\[39, 38, .*, …\]\) raised TypeError: indices must be in incr",
    ),
    "distinct": (Parts(distinct), "reads equal single ones", "raised TypeError: indices must be distinct"),
    "no repeats": (
        Parts(without_repeats),
        "reads equal single ones",
        r"gave leaf \['x'\] as float32\[\d+, 3\] for \d+ rows",
    ),
    "impatient": (Parts(impatient()), "reads equal single ones", r"leaf \['y'\] of row (\d+) .* is \d+, expected \d+"),
    "reusing": (
        Parts(reusing()),
        "results stay",
        r"after later reads, in the first result of read\(\[.*\]\) leaf \['x'\]",
    ),
    "views": (
        Parts(views, owns_memory=True),
        "memory of its own",
        "after writing to the result of read.*, in the next read leaf",
    ),
    "locked": (
        Parts(locked, owns_memory=True),
        "memory of its own",
        r"leaf \['x'\] of read\(\[0, .*\]\) can't be written to",
    ),
    "flat none": (
        Parts(nothing_for_none),
        "reads equal single ones",
        r"read\(\[\]\) gave leaf \['x'\] as float32\[0\] for 0 rows",
    ),
    "failing none": (
        Parts(failing_on_none),
        "reads equal single ones",
        r"read\(\[\]\) raised ValueError: zero-size array",
    ),
    "using up": (Parts(using_up), "rows stay as they are", r"read\(\[.*\]\) changed them to \[0"),
    "wrapping": (Parts(wrapping), "rows out of range", r"read\(\[-1\]\), with len\(\) 40, returned dict"),
    "clipping": (Parts(clipping), "rows out of range", r"read\(\[40\]\), with len\(\) 40, returned dict"),
    "keyed": (Parts(keyed), "rows out of range", r"read\(\[40\]\), with len\(\) 40, raised KeyError: 40"),
}


@pytest.mark.parametrize(("source", "law", "found"), BROKEN_READS.values(), ids=BROKEN_READS.keys())
def test_a_broken_read_is_named(source: Parts, law: str, found: str) -> None:
    with breaks(law, found):
        quick(source)
    np.testing.assert_array_equal(TREE["x"].ravel(), np.arange(120))


@pytest.mark.parametrize(
    "values",
    [np.arange(20) % 3 == 0, np.array([f"{n}" for n in range(20)]), np.array([{}] * 20, object), np.arange(20.0)],
    ids=["bool", "text", "objects", "numbers"],
)
def test_a_source_that_was_written_to_is_put_right(values: Array) -> None:
    """It may be a file of the user's."""

    def read(rows: Array) -> Array:
        run = len(rows) == 20 and (np.diff(rows) == 1).all()
        return values if run else values[rows]

    before = values.copy()
    quick(ArraySource(values), rows=20)
    with breaks("memory of its own", "in the next read the leaf of row 0"):
        quick(Parts(read, spec=ArraySource(values).spec, size=lambda: 20, owns_memory=True), rows=20)
    assert difference([values], [before], [""], np.arange(20)) is None


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (lambda: 0, r"three calls of len\(\) returned \[0, 0, 0\]"),
        (lambda: -1, r"len\(\) raised ValueError"),
        (lambda: 2.5, r"len\(\) raised TypeError"),
        (iter(range(3, 1000)).__next__, r"returned \[3, 4, 5\]"),
    ],
)
def test_a_length_that_is_none(size: Any, found: str) -> None:
    with breaks("length", found):
        quick(Parts(size=size))


def test_a_length_that_reading_changes() -> None:
    read = iter(range(10**6))
    source = Parts(lambda rows: (next(read), take(rows))[1], size=lambda: 40 + (next(read) > 40))
    with breaks("length", r"len\(\) was 40 at first, but 41 after some reads"):
        quick(source)


@pytest.mark.parametrize(
    ("read", "spec", "found"),
    [
        (take, 5, r"finding it raised ArgumentError: spec is 5: pass an object with a shape"),
        (take, SPEC["x"], r"read\(\[0\]\) gave the leaves \[\"\['x'\]\", \"\['y'\]\"\], expected \[''\]"),
        (take, {**SPEC, "x": np.zeros(4)}, r"leaf \['x'\] as float32\[1, 3\] for 1 rows, expected float64\[1, 4\]"),
        (take, {**SPEC, "y": np.int64(0)}, r"leaf \['y'\] as int32\[1\] for 1 rows, expected int64\[1\]"),
        (
            lambda rows: TREE["x"][0],
            None,
            r"finding it raised ArgumentError: the source gave leaf of the batch with shape \[3\]",
        ),
        (
            lambda rows: np.zeros((len(rows), 2 + rows[0] % 2)),
            None,
            r"read\(\[1\]\) gave leaf of the batch as float64\[1, 3\]",
        ),
        (lambda rows: 1 / 0, None, r"finding it raised ZeroDivisionError: division by zero"),
        (lambda rows: 1 / 0, SPEC, r"read\(\[0\]\) raised ZeroDivisionError: division by zero"),
        (lambda rows: next(iter(())), SPEC, r"read\(\[0\]\) raised StopIteration"),
    ],
)
def test_a_spec_that_differs_from_what_is_read(read: Any, spec: Any, found: str) -> None:
    with breaks("spec", found):
        quick(Parts(read, spec=spec))


@pytest.mark.parametrize(
    ("chunks", "found"),
    [
        (np.array([[0, 10]]), r"Parts.chunks is array\(\[\[ 0, 10\]\]\)"),
        (np.array([1, 10]), r"Parts.chunks is array\(\[ 1, 10\]\)"),
        (np.array([0, 10, 10]), r"Parts.chunks is array\(\[ 0, 10, 10\]\)"),
        (range(0, 41, 10), r"Parts.chunks is range\(0, 41, 10\); give the rows at which chunks begin"),
    ],
)
def test_chunks_that_are_none(chunks: Any, found: str) -> None:
    with breaks("chunks", found):
        quick(Parts(chunks=chunks))


@pytest.mark.parametrize("reads", [0, True, "4"])
def test_a_number_of_reads_that_is_none(reads: Any) -> None:
    with breaks("concurrent_reads", f"it is {reads!r}"):
        quick(Parts(concurrent_reads=reads))


# Columns.


def put_all(rows: Array, boxes: Any, out: Any) -> None:
    for leaf, destination in zip(take(rows).values(), out, strict=True):
        destination[...] = leaf[:, : destination.shape[1]] if leaf.ndim > 1 else leaf


def put_first_columns(rows: Array, boxes: Any, out: Any) -> None:
    boxes = [None if box is None else tuple((0, stop - start) for start, stop in box) for box in boxes]
    put(rows, boxes, out)


def put_flat(rows: Array, boxes: Any, out: Any) -> None:
    through(rows, boxes, out, lambda array: array.reshape(-1).reshape(array.shape))


def put_aligned(rows: Array, boxes: Any, out: Any) -> None:
    through(rows, boxes, out, lambda array: np.require(array, requirements="A"))


def through(rows: Array, boxes: Any, out: Any, change: Callable[[Array], Array]) -> None:
    put(rows, boxes, [None if each is None else change(each) for each in out])


def put_too_much(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, boxes, out)
    for each in out:
        if each is not None:
            base = each
            while base.base is not None:
                base = base.base
            base[-1] = 0


def put_into_the_gaps(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, boxes, out)
    for each in out:
        if each is not None and each.ndim == 1 and each.strides[0] > each.itemsize and len(each):
            np.lib.stride_tricks.as_strided(each, (2,), (each.itemsize,))[1] = 0


def put_and_use_up(rows: Array, boxes: Any, out: Any) -> None:
    put(rows, boxes, out)
    rows[...] = 0


def put_wrapping(rows: Array, boxes: Any, out: Any) -> None:
    put(rows % 40, boxes, out)


def put_some(rows: Array, boxes: Any, out: Any) -> None:
    if not len(rows):
        raise ValueError("nothing to put")
    put(rows, boxes, out)


COLUMN = r"in read_into\(\[.*\]\) with the boxes \[.*\] and destinations that are"
BROKEN_COLUMNS = {
    "all leaves": (put_all, "read_into equals read", "raised AttributeError|TypeError"),
    "first columns": (put_first_columns, "read_into equals read", rf"{COLUMN} \S.* leaf \['x'\] of row \d+"),
    "flat": (put_flat, "read_into equals read", f"{COLUMN} not contiguous"),
    "aligned": (put_aligned, "read_into equals read", f"{COLUMN} not aligned"),
    "failing": (lambda *_: 1 / 0, "read_into equals read", "raised ZeroDivisionError"),
    "no rows": (
        put_some,
        "read_into equals read",
        r"read_into\(\[\]\) raised ValueError: nothing to put",
    ),
    "behind": (
        put_too_much,
        "read_into equals read",
        r"are contiguous it wrote beside the destination of leaf \['x'\]",
    ),
    "between": (
        put_into_the_gaps,
        "read_into equals read",
        r"are not contiguous it wrote beside .* leaf \['y'\]",
    ),
    "using up": (put_and_use_up, "rows stay as they are", r"read_into\(\[.*\]\) changed them to \[0"),
    "wrapping": (put_wrapping, "rows out of range", r"read_into\(\[40\]\), with len\(\) 40, returned NoneType"),
}


@pytest.mark.parametrize(("read_into", "law", "found"), BROKEN_COLUMNS.values(), ids=BROKEN_COLUMNS.keys())
def test_broken_columns_are_named(read_into: Any, law: str, found: str) -> None:
    with breaks(law, found):
        quick(Parts(read_into=read_into))


# Threads.


def test_a_read_that_uses_what_another_one_uses() -> None:
    shared: list[Array] = [np.zeros(0)]

    def read(rows: Array) -> Any:
        shared[0] = rows
        time.sleep(1e-4)
        return take(shared[0])

    with breaks("threads"):
        quick(Parts(read))


def test_a_race_for_a_buffer_is_found() -> None:
    buffer = np.empty((100, 3), np.float32)

    def read(rows: Array) -> Any:
        for place, row in enumerate(rows.tolist()):
            buffer[place] = row_of_x(row)
        return {**take(rows), "x": buffer[: len(rows)].copy()}

    def row_of_x(row: int) -> Array:  # a call, which is where the law lets another thread run
        return TREE["x"][row]

    with breaks("threads", r"leaf \['x'\]"):
        quick(Parts(read))


def test_random_numbers_of_the_program_stay_as_they_are() -> None:
    before, hook = random.getstate(), sys.getprofile()
    quick(Parts(take))
    assert random.getstate() == before
    assert sys.getprofile() is hook


def test_a_source_for_one_thread() -> None:
    mine = threading.get_ident()

    def read(rows: Array) -> Any:
        if threading.get_ident() != mine:
            raise RuntimeError("created in another thread")
        return take(rows)

    with breaks("threads", "raised RuntimeError: created in another thread"):
        quick(Parts(read))


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What a broken source waits for; the test's end lets it go on, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """To be set by who hangs: then, and only then, the limit of threads is over.

    Else they have all the time that they need.
    """
    event, moments = threading.Event(), itertools.count(0, 10 * int(HANG))

    def clock() -> float:
        until(
            lambda: (
                event.is_set() or not any(thread.name.startswith("loadax-testing") for thread in threading.enumerate())
            )
        )
        return next(moments)

    monkeypatch.setattr(laws_of_threads, "monotonic", clock)
    return event


def test_a_deadlock_is_an_error_and_no_hang(never: threading.Event, stuck: threading.Event) -> None:
    lock = threading.Lock()

    def read(rows: Array) -> Any:
        if not lock.acquire(blocking=False):
            stuck.set()
            never.wait()
            return take(rows)
        time.sleep(1e-3)
        lock.release()
        return take(rows)

    with breaks("threads", r"4 threads of 3 reads were not done after 120 s \(a deadlock"):
        quick(Parts(read), timeout=HANG)


# Processes.


@pytest.mark.processes
def test_what_a_source_prints_elsewhere_is_no_answer() -> None:
    quick(Elsewhere("print"), pickled=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("what", "timeout", "found"),
    [
        (
            "other",
            HANG,
            r"in a fresh process, in read\(.*\) leaf \['y'\] of row \d+ \(entry 15 of 16\) is \d+, expected \d+",
        ),
        ("wide", HANG, r"read\(.*\) gave leaf \['y'\] as int64\[16\]"),
        ("raise", HANG, r"reading in a fresh process raised OSError: file is not open"),
        ("not opened", HANG, r"unpickling it in a fresh process raised FileNotFoundError: no such file: /nowhere"),
        ("die", HANG, r"a fresh process that read it ended with code 3"),
        ("hang", 1, r"a fresh process had not read it after 1 s \(a deadlock"),
        ("hang with a child", 3, r"a fresh process had not read it after 3 s"),
    ],
)
def test_a_source_that_fails_elsewhere(what: str, timeout: float, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_source_that_holds_what_can_not_be_pickled() -> None:
    source = Elsewhere("print")
    source.__dict__["lock"] = threading.Lock()
    with breaks(
        "fresh process",
        r"pickling it raised TypeError: cannot pickle '_thread.lock' object; .*pickled=False to skip this check$",
    ):
        quick(source, pickled=True)
    quick(source)


def test_a_local_class_is_told_where_to_go() -> None:
    class Local:
        spec = SPEC
        read = staticmethod(take)

        def __len__(self) -> int:
            return 40

    with breaks(
        "fresh process", r"pickling it raised .*Local.*; .*: define it at the top level of a module of its own"
    ):
        quick(Local(), pickled=True)


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
def test_a_script_without_a_main_guard_and_a_program_without_a_file(notebook: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-c", SCRIPT] if notebook else [sys.executable, str(tmp_path / "script.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=HANG
    )
    assert run.stdout == "once\n"
    assert re.search(
        r"ConformanceError: Mine breaks the law 'fresh process': .*unpickling it .*__main__.*: "
        r"define it at the top level of a module of its own",
        run.stderr,
    ), run.stderr


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
    return loadax.from_arrays(TREE).map(lambda example: {**example, "calls": next(calls)})


def on_a_worker() -> bool:
    return threading.current_thread().name.startswith("loadax-worker")


@pytest.mark.parametrize(
    ("data", "law", "found"),
    [
        (
            drifting(),
            "a batch follows from its step",
            r"in step \d+, resumed at step \d+, leaf \['calls'\] of row \d+ .* as in the uninterrupted run",
        ),
        (
            adding(lambda: under("__getitem__")),
            "a batch follows from its step",
            r"in step 0, read by loader\[0\], leaf \['y'\] of row \d+",
        ),
        (
            adding(on_a_worker),
            "a batch follows from its step",
            r"in step \d+, with num_workers=1 instead of 0, leaf \['y'\]",
        ),
        (
            adding(lambda: under("host_batch")),
            "a batch follows from its step",
            r"in step 0, put together from .* leaf \['y'\]",
        ),
        (loadax.from_arrays({"big": np.arange(9) << 40}), "it loads", r"raised LeafError: leaf \['big'\]"),
    ],
)
def test_a_run_that_depends_on_more_than_the_step(data: Any, law: str, found: str) -> None:
    with breaks(law, found):
        check_source(data, pickled=False)


def test_a_run_that_never_ends(never: threading.Event, stuck: threading.Event) -> None:
    def waits(batch: Any) -> Any:
        if on_a_worker():
            stuck.set()
            never.wait()
        return batch

    with breaks("a run ends", r"a Dataloader had not returned all batches after 120 s"):
        check_source(loadax.from_arrays(TREE).map_batch(waits, spec=SPEC), pickled=False, timeout=HANG)


# Arguments.


def test_arguments_that_can_not_be_used() -> None:
    with pytest.raises(ArgumentError, match="rows=0: pass 1 or more"):
        check_source(TREE, rows=0)
    with pytest.raises(ArgumentError, match="timeout=0: pass seconds, more than 0"):
        check_source(TREE, timeout=0)
    with pytest.raises(ArgumentError, match="the data is a set, which can only be iterated over"):
        check_source({1, 2})


def test_the_error_is_an_assertion_and_one_of_loadax() -> None:
    assert issubclass(ConformanceError, AssertionError)
    assert issubclass(ConformanceError, LoadaxError)


def test_the_sample_has_both_ends_and_its_size() -> None:
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
        (np.array([1 + 2j, np.nan]), np.array([1 + 2j, np.nan]), None),
        (np.array(["NaT", 3], "M8[s]"), np.array(["NaT", 3], "M8[s]"), None),
        (np.array([1, 2], jnp.bfloat16), np.array([1, 3], jnp.bfloat16), "row 11 (entry 1 of 2) is 2, expected 3"),
        (np.array([np.nan], jnp.bfloat16), np.array([np.nan], jnp.bfloat16), None),
        (np.zeros(2, "u1,i4"), np.zeros(2, "u1,i4"), None),
        (np.zeros((1, 2, 2)), np.array([[[0, 0], [0, 5]]], float), "(entry 0 of 1) at [1, 1] is 0.0, expected 5.0"),
        (np.zeros(2, np.int32), np.zeros(2, np.int64), "the leaf is int32[2], expected int64[2]"),
        (np.zeros(2), np.zeros((2, 1)), "the leaf is float64[2], expected float64[2, 1]"),
        (np.array(["a"]), np.array(["a", "bb"])[:1], None),
        (np.array(["a"]), np.array(["b"], object), "expected 'b'"),
        (np.array([None, {"k": np.arange(3)}], object), np.array([None, {"k": np.arange(3)}], object), None),
        (np.array([[1.0]], object), np.array([["x" * 99]], object), "is 1.0, expected 'xxx"),
        (np.array([threading.Lock()], object), np.array([threading.Lock()], object), "is <unlocked"),
        (np.zeros((2, 0)), np.zeros((2, 0)), None),
    ],
)
def test_what_counts_as_equal(one: Array, other: Array, found: str | None) -> None:
    message = difference([one], [other], [""], [10, 11])
    assert message is None if found is None else message is not None and found in message
    assert message is None or len(message) < 200


def test_structured_rows_are_compared_by_their_fields() -> None:
    padded = np.dtype({"names": ["a", "b"], "formats": ["u1", "i4"], "offsets": [0, 4], "itemsize": 8})
    one, other = np.full(16, 0, np.uint8).view(padded), np.full(16, 0, np.uint8)
    other[1] = 9  # between the fields
    assert difference([one], [other.view(padded)], ["['r']"], [0, 1]) is None
    other[12] = 9
    assert "leaf ['r'] of row 1" in str(difference([one], [other.view(padded)], ["['r']"], [0, 1]))


# Maps.

EXAMPLES: dict[str, Array] = {"x": np.arange(1, 31, dtype=np.float32).reshape(10, 3), "y": np.arange(10)}


def in_place(batch: Any) -> Any:
    batch["x"] *= 2
    return batch


GOOD_MAPS: dict[str, tuple[Callable[..., Any], bool]] = {
    "same": (lambda batch: batch, False),
    "in place": (in_place, False),
    "by row": (lambda batch: (batch["x"] - batch["x"].mean(axis=1, keepdims=True), np.sort(batch["x"])), False),
    "not a number": (lambda batch: np.where(batch["x"] > 4, np.nan, batch["x"]), False),
    "strings": (lambda batch: np.array([str(value) for value in batch["y"]]), False),
    "random": (lambda batch, rngs: [batch["y"] + np.array([rng.random() for rng in rngs])], True),
}


def test_maps_that_get_their_rows_are_checked_with_them() -> None:
    check_map(lambda batch, rows: batch["y"] + rows, EXAMPLES, with_index=True)
    with pytest.raises(ConformanceError, match="breaks the law 'each row by itself'"):
        check_map(lambda batch, rows: batch["y"] + rows.min(), EXAMPLES, with_index=True)


@pytest.mark.parametrize(("fn", "rng"), GOOD_MAPS.values(), ids=GOOD_MAPS.keys())
def test_maps_that_act_on_each_row_by_itself_pass(fn: Any, rng: bool) -> None:
    before = {name: leaf.copy() for name, leaf in EXAMPLES.items()}
    for seed in range(3):
        check_map(fn, EXAMPLES, rng=rng, seed=seed)
    check_map(fn, {name: leaf[:2] for name, leaf in EXAMPLES.items()}, rng=rng)
    for name, leaf in EXAMPLES.items():
        np.testing.assert_array_equal(leaf, before[name])


NOISE = np.random.default_rng(0)


def noisy(batch: Any) -> Any:
    return batch["x"] + NOISE.random()


def middling(batch: Any) -> Any:
    return batch["x"] + (1 < len(batch["x"]) < 10)


def counting_repeats(batch: Any) -> Any:
    return batch["x"] + len(batch["y"]) - len(set(batch["y"].tolist()))


def not_alone(batch: Any) -> Any:
    if len(batch["x"]) < 2:
        raise ValueError("too few")
    return batch["x"]


BUFFER = np.zeros((100, 3))


def buffering(batch: Any) -> Any:
    out = BUFFER[: len(batch["x"])]
    out[...] = batch["x"]
    return out


def padding(batch: Any) -> Any:
    return np.zeros((len(batch["y"]), int(batch["y"].max())))


BROKEN_MAPS: dict[str, tuple[Callable[..., Any], bool, str, str]] = {
    "too few": (
        lambda batch: batch["x"][:-1],
        False,
        "as many rows",
        r"for 10 rows it returned leaf given of shape \[9, 3\]",
    ),
    "one value": (lambda batch: {"s": batch["x"].sum()}, False, "as many rows", r"returned leaf \['s'\] of shape \[\]"),
    "squeezed": (
        lambda batch: batch["x"].squeeze(),
        False,
        "each row by itself",
        r"the leaf is float32\[3\], expected float32\[1, 3\]",
    ),
    "noisy": (noisy, False, "each row by itself", r"the leaf of row 0 \(entry 0 of 10\) at \[0\] is \S+, expected \S+"),
    "mean": (
        lambda batch: batch["x"] - batch["x"].mean(),
        False,
        "each row by itself",
        r"called with the rows \[0\], the leaf of row 0",
    ),
    "not alone": (not_alone, False, "each row by itself", r"the rows \[0\], which raised ValueError: too few"),
    "by place": (
        lambda batch: batch["y"] + np.arange(len(batch["y"])),
        False,
        "each row by itself",
        r"row 9 \(entry 0 of 1\) is 9, expected 18",
    ),
    "middling": (middling, False, "each row by itself", "called with the rows"),
    "sorting": (lambda batch: np.sort(batch["x"], axis=0), False, "each row by itself", "called with the rows"),
    "repeats": (counting_repeats, False, "each row by itself", "called with the rows"),
    "padding": (padding, False, "each row by itself", r"the leaf is float64\[1, 0\], expected float64\[1, 9\]"),
    "other leaves": (
        lambda batch: batch if len(batch["x"]) > 1 else batch["x"],
        False,
        "each row by itself",
        r"called with the rows \[0\] it returned the leaves \[''\], else \[\"\['x'\]\"",
    ),
    "another dtype": (
        lambda batch: batch["y"].astype(np.int32 if batch["y"].any() else np.int64),
        False,
        "each row by itself",
        r"the leaf is int64\[1\], expected int32\[1\]",
    ),
    "buffering": (
        buffering,
        False,
        "results stay",
        "after later calls, in the first call's result the leaf of row",
    ),
    "first generator": (lambda batch, rngs: batch["y"] + rngs[0].random(), True, "each row by itself", "row 9"),
}


@pytest.mark.parametrize(("fn", "rng", "law", "found"), BROKEN_MAPS.values(), ids=BROKEN_MAPS.keys())
def test_a_map_that_mixes_rows_is_named(fn: Any, rng: bool, law: str, found: str) -> None:
    with breaks(law, found):
        check_map(fn, EXAMPLES, rng=rng)


def test_floats_may_lie_apart_where_that_is_allowed() -> None:
    def nearly(batch: Any) -> Any:
        return np.where(batch["y"] == 3, np.nan, batch["y"] * (1 + 1e-9 * len(batch["x"])))

    with breaks("each row by itself"):
        check_map(nearly, EXAMPLES)
    check_map(nearly, EXAMPLES, rtol=1e-6)
    with breaks("each row by itself"):
        check_map(lambda batch: batch["y"] + len(batch["y"]), EXAMPLES, rtol=1e-6)


def test_what_a_map_raises_on_all_rows_is_its_own() -> None:
    with pytest.raises(KeyError, match="z") as caught:
        check_map(lambda batch: batch["z"], EXAMPLES)
    assert "loadax: in map_batch" in caught.value.__notes__[0]
    with pytest.raises(LeafError, match="returned None; did you forget to return the batch"):
        check_map(lambda batch: None, EXAMPLES)


def test_a_map_without_examples() -> None:
    with pytest.raises(ArgumentError, match="fn=5 can't be called; pass a function of a batch"):
        check_map(5, EXAMPLES)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="examples has rows: 1; pass two or more"):
        check_map(len, np.zeros(1))
    with pytest.raises(SourceError, match=r"leaf \['x'\]\[0\] is int 1, not an array"):
        check_map(len, {"x": [1, 2]})


# Faults.


def test_faults_come_as_often_as_they_should() -> None:
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


def test_faults_reach_the_loop_with_their_row_and_nothing_gathers_on_them() -> None:
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


def test_a_faulty_source_is_what_it_wraps() -> None:
    inner = Parts(read_into=put, chunks=np.array([0, 9]), concurrent_reads=3, owns_memory=True)
    source = FaultySource(inner, {1: OSError("gone")})
    assert (source.spec, len(source), source.traits.concurrent_reads) == (SPEC, 40, 3)
    assert source.chunks is inner.chunks
    out = np.zeros(1, np.int32)
    assert source.traits.reads_columns
    source.read_into(np.array([2]), [None, ()], [None, out])
    assert out.tolist() == [9]
    with pytest.raises(OSError, match="gone"):
        source.read_into(np.array([1]), [None, ()], [None, out])
    assert len(source.reads) == 2
    assert not FaultySource(Parts(), {}).traits.reads_columns
    assert FaultySource(TupleSource(), {}).chunks is None
    assert repr(FaultySource(ArraySource(TREE), {3: OSError()})) == "arrays in memory with 1 faulty rows"


class TupleSource:
    spec = SPEC

    def __len__(self) -> int:
        return 40

    def read(self, rows: Array) -> Any:
        return take(rows)


def test_datasets_and_objects_can_be_faulty_too() -> None:
    error = OSError("gone")
    for data in (loadax.from_arrays(TREE), TREE, [{"x": leaf} for leaf in TREE["x"]]):
        source = FaultySource(data, {4: error}, times=1)
        with pytest.raises(OSError, match="gone"):
            source.read(np.array([4]))
        np.testing.assert_array_equal(source.read(np.array([4]))["x"], TREE["x"][[4]])


@pytest.mark.parametrize(
    ("failures", "times", "message"),
    [
        ({40: OSError()}, None, "failures has row 40, which is out of range: rows are at least 0 and below 40"),
        ({-1: OSError()}, None, "failures has row -1"),
        ({1: OSError}, None, r"failures\[1\]=<class 'OSError'>: pass an exception"),
        ({1: OSError()}, 0, "times=0: pass 1 or more, or None for all reads"),
    ],
)
def test_faults_that_can_not_be(failures: Any, times: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        FaultySource(ArraySource(TREE), failures, times)


def test_a_row_that_is_not_there_is_the_wrapped_sources_to_tell() -> None:
    with pytest.raises(RowIndexError, match="row 40 is out of range"):
        FaultySource(ArraySource(TREE), {}).read(np.array([40]))


@pytest.mark.parametrize(
    "rows",
    [
        [np.int64(1), np.float64(2.5), np.bool_(True)],
        [{"words": ["ab"]}, {"words": ["ab", "c"]}],
        [np.arange(2), "text", {"x": 1.5}],
    ],
)
def test_rows_that_differ_in_dtype_or_structure_keep_the_contract(rows: list[Any]) -> None:
    check_source(rows, loader=False, pickled=False)
    check_source(loadax.concat([rows, rows]), loader=False, pickled=False)


def test_one_part_may_be_changed_by_its_maps() -> None:
    chunked = loadax.from_source(ChunkedSource(np.arange(12), 4))
    check_source(loadax.concat([chunked.map(np.float32)]), loader=False, pickled=False)
    listed = loadax.from_source(list(range(5))).map_batch(lambda rows: rows + 1)
    check_source(loadax.concat([listed]), loader=False, pickled=False)
