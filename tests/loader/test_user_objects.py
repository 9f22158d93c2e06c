"""Objects and functions of users that hold a handle are called by one thread at a time, at every door."""

import copy
import dataclasses
import pickle
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import grain
import jax
import numpy as np
import pytest

from loadax import Dataloader, Dataset, from_arrays, from_source
from loadax.errors import ArgumentError, MeshError
from loadax.sharding import data_parallel

N, WIDTH = 96, 64
SPEC = {"x": np.int32(0)}
FOUND = "open one per thread"


class File:
    """Row i is i. Another thread that seeks in between makes it another row."""

    def __init__(self, path: Path, lazy: bool = False):
        self.path, self.f = path, None if lazy else path.open("rb", buffering=0)

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> dict[str, Any]:
        if self.f is None:
            self.f = self.path.open("rb", buffering=0)
        self.f.seek(row * WIDTH * 4)
        time.sleep(1e-4)
        return {"x": np.frombuffer(self.f.read(WIDTH * 4), np.int32)[0]}

    def close(self) -> None:
        if self.f is not None:
            self.f.close()


class Many(File):
    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self[row] for row in rows]


class Subset:
    """As torch wraps datasets."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, row: int) -> Any:
        return self.inner[row]


class Reads(File):
    spec: ClassVar = SPEC

    def read(self, rows: Any) -> Any:
        return {"x": np.array([self[int(row)]["x"] for row in rows])}


class Examples(Reads):
    def examples(self, rows: Any) -> list[Any]:
        return [self[int(row)] for row in rows]


def mapped(file: File, **options: Any) -> Dataset:
    return from_arrays(np.arange(N)).map(lambda row: file[int(row)], **options)


def batch_mapped(file: File) -> Dataset:
    def read(rows: Any) -> Any:
        return {"x": np.array([file[int(row)]["x"] for row in rows])}

    return from_arrays(np.arange(N)).map_batch(read)


DOORS: dict[str, tuple[type[File], Callable[[Any], Any]]] = {
    "__getitem__": (File, lambda file: file),
    "__getitems__": (Many, lambda file: file),
    "wrapped": (File, lambda file: Subset(Subset([file][0]))),
    "read": (Reads, lambda file: file),
    "examples": (Examples, lambda file: file),
    "from_source": (File, from_source),
    "map": (File, mapped),
    "map with spec": (File, lambda file: mapped(file, spec=SPEC)),
    "map_batch": (File, batch_mapped),
    "flat_map": (File, lambda file: from_arrays(np.arange(N)).flat_map(lambda row: [file[int(row)]], fan_out=1)),
    "grain source": (File, grain.MapDataset.source),
    "grain map": (File, lambda file: grain.MapDataset.range(N).map(lambda row: file[int(row)])),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.arange(N, dtype=np.int32).repeat(WIDTH).tofile(tmp_path / "a.bin")
    return tmp_path / "a.bin"


def check(loader: Dataloader) -> None:
    for step, batch in enumerate(loader):
        assert batch["x"].tolist() == loader.rows(step).tolist()


@pytest.mark.parametrize("lazy", [False, True], ids=["opened in __init__", "opened on first use"])
@pytest.mark.parametrize("door", DOORS)
def test_rows_of_one_file_position_are_right_with_threads(door: str, lazy: bool, path: Path) -> None:
    kind, make = DOORS[door]
    with closing(kind(path, lazy)) as file:
        with pytest.warns(UserWarning, match=FOUND) as warned:
            check(Dataloader(make(file), 8, num_workers=4))
        assert len(warned) == 1, [str(warning.message) for warning in warned]
        assert str(warned[0].message).startswith(f"{kind.__name__}.f is a FileIO, which threads can't use")


def test_default_workers_warn_where_the_loader_is_made_and_one_worker_does_not(path: Path) -> None:
    with closing(File(path)) as file:
        with pytest.warns(UserWarning, match=r"^File\.f is a FileIO.* to call File: ") as warned:
            check(Dataloader(file, 8))
        assert [warning.filename for warning in warned] == [__file__]
        for workers in (0, 1):
            check(Dataloader(file, 8, num_workers=workers))


def test_advice_of_the_warning_works_to_the_letter(path: Path) -> None:
    class PerThread(File):
        def __init__(self, path: Path):
            self.path, self.own = path, threading.local()

        def __getitem__(self, row: int) -> dict[str, Any]:
            if not hasattr(self.own, "file"):
                self.own.file = Closing(self.path)
            return self.own.file[row]

    class Closing(File):
        def __del__(self) -> None:
            self.close()

    check(Dataloader(PerThread(path), 8, num_workers=2))
    with closing(File(path)) as file:
        for thread_safe in (False, True):
            Dataloader(from_source(file, thread_safe=thread_safe), 8, num_workers=2)
        check(Dataloader(from_source(file, thread_safe=False), 8, num_workers=4))


class Raster:
    """As a dataset of GDAL: C code closes it, and calls of two threads at once end the process."""

    close = len  # a method of C code

    def __init__(self) -> None:
        self.in_use = False

    def read(self, row: int) -> int:
        assert not self.in_use
        self.in_use = True
        time.sleep(1e-4)
        self.in_use = False
        return row


class Tiles:
    def __init__(self, raster: Raster):
        self.raster = raster

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": self.raster.read(row)}


def reads_raster(raster: Raster) -> Dataset:
    return from_arrays(np.arange(N)).map(lambda row: {"x": raster.read(int(row))})


@pytest.mark.parametrize("make", [Tiles, reads_raster, lambda raster: Subset(Tiles(raster))])
def test_an_object_of_a_c_library_is_called_by_one_thread_at_a_time(make: Callable[[Raster], Any]) -> None:
    data = make(Raster())
    with pytest.warns(UserWarning, match=r"raster is a Raster, an object of a C library that may not allow") as warned:
        check(Dataloader(data, 8, num_workers=4))
    assert len(warned) == 1
    assert "from_source(…, thread_safe=True) says that no turns are needed" in str(warned[0].message)


def test_advice_for_an_object_of_a_c_library_that_threads_share_works_to_the_letter() -> None:
    class Shared(Raster):
        def read(self, row: int) -> int:
            return row

    check(Dataloader(from_source(Tiles(Shared()), thread_safe=True), 8, num_workers=4))


class Meets:
    """Two threads that call it at once meet."""

    def __init__(self, file: Any = None):
        self.file, self.now, self.most = file, 0, 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(1e-3)
        self.now -= 1
        return {"x": np.int32(row)}


@pytest.mark.parametrize(("held", "thread_safe", "together"), [(0, None, 1), (0, False, 0), (1, None, 0), (1, True, 1)])
def test_thread_safe_decides_who_calls_at_once(held: bool, thread_safe: Any, together: bool, path: Path) -> None:
    with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
        items = Meets(file if held else None)
        check(Dataloader(from_source(items, thread_safe=thread_safe), 8, num_workers=4))
        assert (items.most > 1) == together


def test_objects_that_hold_one_handle_take_turns_with_each_other(path: Path) -> None:
    with closing(File(path)) as file, warnings.catch_warnings(action="ignore"):
        loaders = [Dataloader(data, 8, num_workers=2) for data in (Subset(file), file, mapped(file))]
        for batches in zip(*loaders, strict=True):
            assert len({tuple(batch["x"].tolist()) for batch in batches}) == 1
        for loader in loaders:
            check(loader)


def test_thread_safe_of_data_that_loadax_reads_is_refused(path: Path) -> None:
    for data in (np.arange(3), from_arrays(np.arange(3))):
        with pytest.raises(ArgumentError, match=r"^thread_safe=True: .* is read by loadax itself.*leave it out"):
            from_source(data, thread_safe=True)
    with pytest.raises(ArgumentError, match="thread_safe=1: pass True or False"):
        from_source([1, 2], thread_safe=1)  # type: ignore[arg-type]


class Sql:
    def __init__(self, path: Path, lazy: bool, **options: Any):
        self.open: Callable[[], Any] = lambda: sqlite3.connect(path, **options)
        self.f = None if lazy else self.open()

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        self.f = self.f or self.open()
        return {"x": np.int32(self.f.execute("select ?", (row,)).fetchone()[0])}

    def close(self) -> None:
        if self.f is not None:
            self.f.close()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 3}])
def test_sqlite_is_read_on_the_thread_that_opened_it(options: dict[str, Any], lazy: bool, tmp_path: Path) -> None:
    with closing(Sql(tmp_path / "a.db", lazy)) as rows:
        with pytest.warns(UserWarning, match=r"Sql\.f is a Connection.*num_workers is 0.*check_same_thread=False"):
            check(Dataloader(rows, 8, **options))
        check(Dataloader(rows, 8, num_workers=0))  # as it advises
    with closing(Sql(tmp_path / "a.db", lazy, check_same_thread=False)) as rows, pytest.warns(match=FOUND):
        check(Dataloader(rows, 8, num_workers=3))


def test_sqlite_connection_of_another_thread_is_told_with_a_remedy(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        rows = thread.submit(Sql, tmp_path / "a.db", lazy=False).result()
        with pytest.raises(sqlite3.ProgrammingError) as raised:
            Dataloader(rows, 8, num_workers=0)
        thread.submit(rows.close).result()
    assert "check_same_thread=False" in "".join(raised.value.__notes__)


@dataclasses.dataclass
class Config:
    data: Any
    rate: float = 0.1


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a configuration": lambda item: copy.deepcopy(Config([item])).data[0],
    "asdict": lambda item: dataclasses.asdict(Config({"a": item}))["data"]["a"],
    "astuple": lambda item: dataclasses.astuple(Config(item))[0],
    "replace": lambda item: dataclasses.replace(Config(item), rate=1.0).data,
    "pickle": lambda item: pickle.loads(pickle.dumps(item)),
    "cloudpickle": lambda item: cloudpickle.loads(cloudpickle.dumps(item)),
}


def double(row: Any) -> Any:
    return {"x": row["x"] * 2}


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_datasets_and_loaders_give_the_same_batches(how: str) -> None:
    data = from_arrays({"x": np.arange(40)}).shuffle(1).map(double)
    loader = Dataloader(data, 8, num_epochs=3)
    wanted = [batch["x"].tolist() for batch in loader.skip(2)]
    assert [batch["x"].tolist() for batch in COPIES[how](loader.skip(2))] == wanted
    made = COPIES[how](data)
    assert isinstance(made, Dataset)
    assert [batch["x"].tolist() for batch in Dataloader(made, 8, num_epochs=3).skip(2)] == wanted


def test_a_loader_on_given_devices_is_not_pickled_but_copied() -> None:
    loader = Dataloader(np.arange(16), 8, mesh=data_parallel(jax.devices()[:2]))
    with pytest.raises(MeshError, match=r"can't be pickled.*pickle loader\.dataset, and make the loader where"):
        pickle.dumps(loader)
    assert pickle.loads(pickle.dumps(loader.dataset))[3] == 3
    assert copy.copy(loader) is copy.deepcopy(loader) is loader
