"""Every wrapper around every kind of source answers for what it wraps, and reads what it wraps."""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
import loadax.sources
from loadax.composition.concatenated import ConcatenatedSource
from loadax.composition.windowed import WindowOptions, WindowSource
from loadax.core.spec import flatten_spec
from loadax.errors import ArgumentError, ConformanceError
from loadax.plan.sequential import Sequential
from loadax.plan.slice import Sliced
from loadax.protocols import ArraySpec, Location, Tree, Visits
from loadax.reader import Reader
from loadax.sources.adapt import as_source
from loadax.sources.base import BaseSource, Traits, walk
from loadax.sources.checks import chunk_starts
from loadax.sources.wrappers.chunk_cache import ChunkCache
from loadax.sources.wrappers.cropped import CroppedSource
from loadax.testing import check_source
from loadax.writing.data_fingerprint import identify
from tests.faulty import FaultySource
from tests.sources.chunked import ChunkedSource
from tests.sources.token_corpora import write_pair

ROWS = np.arange(24 * 6, dtype=np.int32).reshape(24, 6)


def lengths() -> list[int]:
    return [int(length) for length in np.random.default_rng(3).integers(0, 9, 24)]


def arrays(_: Path) -> BaseSource:
    return loadax.from_arrays(ROWS).source


def mapped(path: Path) -> BaseSource:
    np.save(path / "rows.npy", ROWS)
    return loadax.from_npy(path / "rows.npy").source


def stored(path: Path) -> BaseSource:
    if not (path / "rows.zarr").exists():
        loadax.write_zarr(ROWS, path / "rows.zarr", chunk_rows=4, shard_rows=8)
    return loadax.from_zarr(path / "rows.zarr").source


def chunked(_: Path) -> BaseSource:
    return as_source(ChunkedSource(ROWS, np.array([0, 5, 6, 17]), into=False))


def documents(path: Path) -> BaseSource:
    flat = np.arange(sum(lengths()), dtype=np.uint16)
    split = np.split(flat, np.cumsum(lengths())[:-1])
    return loadax.from_documents(write_pair(path / "documents.bin", [[each] for each in split])).source


def listed(_: Path) -> BaseSource:
    return loadax.from_source([np.arange(length, dtype=np.int64) for length in lengths()]).source


class WithExamples:
    """A user's source of documents, with what it may have."""

    spec = None

    def __len__(self) -> int:
        return len(lengths())

    def _one(self, row: int) -> Any:
        return np.full(lengths()[row], row, np.int64)

    def read(self, rows: Any) -> Any:
        return np.stack([self._one(row) for row in rows.tolist()])

    def examples(self, rows: Any) -> list[Any]:
        return [self._one(row) for row in rows.tolist()]

    def lengths(self, rows: Any) -> Any:
        return np.array(lengths())[rows]

    def locate(self, row: int) -> list[tuple[str, int, int]]:
        return [("mine", row, row)]


def of_a_user(_: Path) -> BaseSource:
    return as_source(WithExamples())


def mixture(path: Path) -> BaseSource:
    return loadax.mix({"web": loadax.from_zarr(written(path)), "code": ROWS[:5].copy()}, {"web": 1, "code": 1}).source


def written(path: Path) -> Path:
    stored(path)
    return path / "rows.zarr"


def random_parts(_: Path) -> BaseSource:
    noisy = loadax.from_arrays(ROWS).map(lambda row, rng: row + rng.integers(0, 9, 6, dtype=np.int32), rng=True, seed=0)
    return loadax.concat([noisy, noisy[:3]]).source


def mixture_of_documents(path: Path) -> BaseSource:
    return loadax.mix(
        {
            "a": loadax.from_documents(path / "documents.bin") if documents(path) else None,
            "b": list(map(as_uint16, lengths())),
        },
        {"a": 1, "b": 1},
    ).source


def as_uint16(length: int) -> Any:
    return np.ones(length, np.uint16)


def packed(path: Path) -> BaseSource:
    return loadax.from_source(documents(path)).pack(7).source


SOURCES: dict[str, Callable[[Path], BaseSource]] = {
    each.__name__: each
    for each in (
        arrays,
        mapped,
        stored,
        chunked,
        documents,
        listed,
        of_a_user,
        mixture,
        random_parts,
        mixture_of_documents,
        packed,
    )
}
RAGGED = {"documents", "listed", "of_a_user", "mixture_of_documents"}


def reader(source: BaseSource) -> Reader:
    zero = np.zeros(1, np.int64)
    return Reader(source, (), Visits(zero, zero))


def spec_of(source: BaseSource) -> Tree:
    return reader(source).spec


def faulty(source: BaseSource) -> BaseSource:
    return FaultySource(source, {})


def twice(source: BaseSource) -> BaseSource:
    return ConcatenatedSource([reader(source), reader(source)], "mix", ["one", "two"])


def windows(source: BaseSource) -> BaseSource:
    rows = Sliced(Sequential(len(source)), 1, 1, len(source) - 1)
    return WindowSource(reader(source), spec_of(source), rows, WindowOptions(3))


def cropped(source: BaseSource) -> BaseSource:
    specs, structure = flatten_spec(spec_of(source))
    smaller = [ArraySpec((min(2, each.shape[0]), *each.shape[1:]) if each.shape else (), each.dtype) for each in specs]
    return CroppedSource(source, structure.build(smaller))


def cached(source: BaseSource) -> BaseSource:
    return ChunkCache(source, spec_of(source), 3)


def side_by_side(source: BaseSource) -> BaseSource:
    rows = loadax.Dataset(source, Sequential(len(source)))
    return loadax.zip({"a": rows, "b": rows[::-1]}).source


def into_rows(source: BaseSource) -> BaseSource:
    return loadax.Dataset(source, Sequential(len(source))).pack(10).source


WRAPPERS = {each.__name__: each for each in (faulty, twice, windows, cropped, cached, side_by_side, into_rows)}


def fits(wrapper: str, source: str, inner: BaseSource) -> bool:
    if wrapper in ("windows", "cropped"):
        return source not in RAGGED
    if wrapper == "cached":
        return source not in RAGGED and chunk_starts(inner) is not None
    # Packed rows are no documents, and random maps come after packing.
    return wrapper != "into_rows" or source not in ("packed", "random_parts")


def test_every_source_keeps_the_contract_by_itself(tmp_path: Path) -> None:
    for make in SOURCES.values():
        check_source(make(tmp_path), loader=False, pickled=False)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_answers_for_what_it_wraps(wrapper: str, source: str, tmp_path: Path) -> None:
    inner = SOURCES[source](tmp_path)
    if not fits(wrapper, source, inner):
        return
    made = WRAPPERS[wrapper](inner)
    check_source(made, loader=False, pickled=False)
    again = WRAPPERS[wrapper](faulty(made)) if fits(wrapper, source, made) and wrapper != "into_rows" else faulty(made)
    check_source(again, loader=False, pickled=False)
    # Nothing below is out of reach of who looks for what is read.
    assert {each for one in walk(inner) for each in one.addresses} <= {
        each for one in walk(again) for each in one.addresses
    }
    assert any(each is inner for each in walk(again))


def test_a_wrapper_that_forgets_something_is_told(tmp_path: Path) -> None:
    class Forgetful(FaultySource):  # type: ignore[misc]
        def locate(self, row: int) -> list[Location]:
            return []

    with pytest.raises(
        ConformanceError, match=r"'a wrapper answers for what it wraps': locate\(0\) is \[\], that of TensorStoreSource"
    ):
        check_source(Forgetful(stored(tmp_path), {}), loader=False, pickled=False)

    class Stacked(FaultySource):  # type: ignore[misc]
        def __init__(self, source: BaseSource):
            super().__init__(source, {})
            self.traits = self.traits._replace(reads_examples=False)

    with pytest.raises(ConformanceError, match=r"rows one by one|spec"):
        check_source(Stacked(listed(tmp_path)), loader=False, pickled=False)


def test_no_source_has_a_trait_as_a_member_of_its_own() -> None:
    """Such a member would be read by nobody: what a source is like is said in its `traits` alone."""
    for module in pkgutil.walk_packages(loadax.sources.__path__, "loadax.sources."):
        importlib.import_module(module.name)
    kinds = [BaseSource]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("loadax."):
            assert set(Traits._fields).isdisjoint(vars(kind)), kind
    assert len(kinds) > 25


def test_examples_are_memory_of_their_own() -> None:
    class Given:
        spec = None
        held = (np.arange(3.0), np.arange(4.0))

        def __len__(self) -> int:
            return 2

        def read(self, rows: Any) -> Any:
            return np.stack([self.held[row] for row in rows])

        def examples(self, rows: Any) -> list[Any]:
            return [self.held[row] for row in rows]

    doubled = loadax.from_source(Given()).map(lambda row: np.multiply(row, 2, out=row)).map(lambda row: row[:3])
    assert doubled.read([0, 1, 1]).tolist() == [[0, 2, 4]] * 3
    assert Given.held[1].tolist() == [0, 1, 2, 3]
    assert identify(doubled.source)["memory"] is None  # what it calls `held` is something else
    check_source(Given(), loader=False, pickled=False)


def test_users_wrappers_are_walked_too(tmp_path: Path) -> None:
    class Half:
        """A wrapper of a user's, as the contract documents it."""

        def __init__(self, inner: Any):
            self.inner, self.spec = inner, inner.spec

        def __len__(self) -> int:
            return len(self.inner) // 2

        def read(self, rows: Any) -> Any:
            return self.inner.read(rows * 2)

        def map_children(self, wrap: Any) -> "Half":
            return Half(wrap(self.inner, 0.5))

    inner = stored(tmp_path)
    source = as_source(Half(inner))
    ((name, child, first, times, *_),) = source.children
    assert (name, child, first, times) == ("", inner, None, 0.5)
    replaced = source.map_children(lambda each: FaultySource(each.source, {6: OSError("gone")}))
    assert replaced.read(np.array([2])).tolist() == ROWS[[4]].tolist()
    with pytest.raises(OSError, match="gone"):
        replaced.read(np.array([3]))
    with pytest.raises(ArgumentError, match="which this dataset reads"):
        loadax.write_zarr(Half(inner), tmp_path / "rows.zarr", overwrite=True)


def test_what_users_say_of_their_data_tells_it_from_other_data(tmp_path: Path) -> None:
    folder, part = tmp_path / "data", tmp_path / "data" / "part"
    folder.mkdir()
    part.write_text("old")

    class Given:
        spec = ArraySpec((), np.dtype(np.int64))
        addresses = folder
        memory = np.arange(4)

        def __len__(self) -> int:
            return 4

        def read(self, rows: Any) -> Any:
            return rows

        def some_files(self, most: int) -> list[str]:
            return [str(part)][:most]

        def held(self, most: int) -> list[Any]:
            return [self.memory[:most]]

    def told() -> dict[str, Any]:
        return identify(loadax.concat([loadax.from_source(Given()), loadax.from_source(Given())]).source)

    first = told()
    assert None not in first.values()
    assert told() == first
    part.write_text("newer")
    assert told()["files"] != first["files"]
    Given.memory = np.arange(4) * 2
    assert told()["memory"] != first["memory"]
    with pytest.raises(ArgumentError, match="which this dataset reads"):
        loadax.write_zarr(loadax.from_source(Given()).map(lambda row: row), folder, overwrite=True)


@pytest.mark.parametrize("wrap", ["pack", "concat of packs", "concat of maps", "windows"])
def test_what_is_read_is_never_written_over(wrap: str, tmp_path: Path) -> None:
    data = loadax.from_zarr(written(tmp_path))
    made = {
        "pack": lambda: data.pack(10),
        "concat of packs": lambda: loadax.concat([data.pack(10), data.pack(10)]),
        "concat of maps": lambda: loadax.concat([data.map(lambda row: row + 1), data]),
        "windows": lambda: data.windows(3).map(lambda rows: rows.reshape(-1)),
    }[wrap]()
    path = tmp_path / "rows.zarr"
    with pytest.raises(ArgumentError, match=r"overlaps .*, which this dataset reads; choose another path"):
        loadax.write_zarr(made, path, overwrite=True)
    with pytest.raises(ArgumentError, match=r"overlaps .*, which this dataset reads; choose another path"):
        made.cache(path, overwrite=True, progress=False)
    assert loadax.from_zarr(path).read(range(24)).tolist() == ROWS.tolist()
