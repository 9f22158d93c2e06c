"""The law of bad arguments: any call refuses a value of the wrong kind, with a library error that names it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.errors import LoadaxError, StateError
from loadax.interop.prometheus import serve
from loadax.testing import disjoint
from tests.loader.oracle import mesh_of

UNTYPED: Any = loadax  # so that a type checker lets wrong arguments pass
SERVE: Any = serve
DATA: Any = loadax.from_arrays({"x": np.arange(100)})
DOCUMENTS = loadax.from_source([np.arange(number % 5 + 1) for number in range(30)])
MIXED = loadax.mix({"a": DATA, "b": DATA}, [1, 1])


def loader(**options: Any) -> Any:
    return loadax.Dataloader(DATA, **{"batch_size": 8, "num_workers": 0, **options})


def tokens(folder: Path, **options: Any) -> loadax.Dataset:
    np.arange(1000, dtype=np.uint16).tofile(folder / "t.bin")
    return loadax.from_tokens(folder / "t.bin", **{"seq_len": 8, "dtype": "uint16", **options})


def written(folder: Path, **options: Any) -> None:
    loadax.write_zarr(DATA, folder / "w.zarr", **options)


Call = Callable[[Any, Path], Any]

INTS: dict[str, Call] = {
    "length": lambda value, _: DATA.windows(value),
    "stride": lambda value, _: DATA.windows(2, value),
    "lead": lambda value, _: DATA.windows(2, lead=value),
    "targets": lambda value, _: DATA.windows(2, lead=1, targets=value),
    "times": lambda value, _: len(DATA.repeat(value)),
    "epoch": lambda value, _: DATA.repeat(3).read([0], value),
    "block": lambda value, _: DATA.shuffle(0, block=np.array([value]) if isinstance(value, str) else value)[0],
    "window": lambda value, _: DATA.shuffle(0, block=2, window=value)[0],
    "lanes": lambda value, _: DATA.shuffle(0, block=2, window=2, lanes=value)[0],
    "index": lambda value, _: DATA[value],
    "seq_len": lambda value, _: DOCUMENTS.pack(value),
    "workers": lambda value, _: DATA.filter(lambda _: True, workers=value),
    "stride of tokens": lambda value, folder: tokens(folder, stride=value),
    "cache_bytes": lambda value, folder: tokens(folder, cache_bytes=value),
    "size": lambda value, folder: UNTYPED.from_images(folder, size=value),
    "chunk_rows": lambda value, folder: written(folder, chunk_rows=value),
    "shard_rows": lambda value, folder: written(folder, shard_rows=value),
    "workers of write_zarr": lambda value, folder: written(folder, workers=value),
    **{
        name: lambda value, _, name=name: loader(**{name: value})  # type: ignore[misc]
        for name in (
            "batch_size",
            "num_epochs",
            "microbatches",
            "num_workers",
            "prefetch",
            "prefetch_bytes",
            "cache_bytes",
        )
    },
    "batch_size with padding": lambda value, _: loader(batch_size=value, remainder="pad"),
    "step": lambda value, _: loader(num_epochs=None).rows(value),
    "start": lambda value, _: loader(num_epochs=None).iterate(value),
    "steps": lambda value, _: loader(num_epochs=None).skip(value),
    "steps of find": lambda value, _: loader().find(3, steps=value),
    "epochs": lambda value, _: loader().find(3, epochs=value),
    "row": lambda value, _: loader().find(value),
    "at": lambda value, _: loader().explain(2, value),
    "port": lambda value, _: SERVE(loader(), value),
    "size of sample": lambda value, _: DATA.sample(np.ones(100), size=value),
    "shard_index": lambda value, _: loader(shard_index=value, shard_count=2),
    "shard_count": lambda value, _: loader(shard_index=0, shard_count=value),
    "epochs of disjoint": lambda value, _: disjoint(DATA, DATA, value),
    "version": lambda value, _: loadax.mix([DATA, DATA], [1, 1], version=value),
}


@pytest.mark.parametrize(
    "value", [2**63, 10**400, -(2**63), int, np.arange(3), np.array([[3]]), np.array(["a", "b"]), True, 1.5, "3"]
)
@pytest.mark.parametrize("name", INTS)
def test_ints(name: str, value: Any, tmp_path: Path) -> None:
    """Some take more than ints: a schedule, a slice, several steps. None of them takes these."""
    if (
        isinstance(value, np.ndarray)
        and value.dtype.kind == "i"
        and (name == "steps" or (name, value.ndim) == ("index", 1))
    ):
        return  # several steps, or positions
    with pytest.raises(
        LoadaxError,
        match=rf"{name.split(maxsplit=1)[0]}(\[\d\])?[= ]|step .* is out of range",
    ):
        INTS[name](value, tmp_path)


LEAST: dict[str, tuple[int, Call]] = {
    "length": (1, lambda value, _: DATA.windows(value)),
    "stride": (1, lambda value, _: DATA.windows(2, value)),
    "targets": (1, lambda value, _: DATA.windows(3, lead=1, targets=value)),
    "every": (1, lambda value, _: DATA.windows(2, every=value)),
    "times": (1, lambda value, _: DATA.repeat(value)),
    "epoch": (0, lambda value, _: DATA.read([0], epoch=value)),
    "block": (1, lambda value, _: DATA.shuffle(0, block=value)),
    "window": (1, lambda value, _: DATA.shuffle(0, block=2, window=value)),
    "lanes": (1, lambda value, _: DATA.shuffle(0, block=2, lanes=value)),
    "gap": (0, lambda value, _: DATA.split(0.8, contiguous=True, gap=value)),
    "size": (1, lambda value, _: DATA.sample(np.ones(100), size=value)),
    "workers": (1, lambda value, _: DATA.filter(lambda _: True, workers=value)),
    "lengths['x']": (1, lambda value, _: DOCUMENTS.map(lambda x: {"x": x}).pad({"x": value})),
    "seq_len": (1, lambda value, _: DOCUMENTS.pack(value)),
    "seq_len['x']": (1, lambda value, _: DOCUMENTS.map(lambda x: {"x": x}).pack({"x": value}, method="best_fit")),
    "window of pack": (1, lambda value, _: DOCUMENTS.pack(8, method="best_fit", window=value)),
    "align": (1, lambda value, _: DOCUMENTS.pack(8, method="best_fit", align=value)),
    "most_documents": (1, lambda value, _: DOCUMENTS.pack(8, method="best_fit", most_documents=value)),
    "budgets['n']": (1, lambda value, _: DOCUMENTS.group({"n": value}, len)),
    "window of group": (1, lambda value, _: DOCUMENTS.group(5, len, window=value)),
    "most_rows": (1, lambda value, _: DOCUMENTS.group(5, len, most_rows=value)),
    "seq_len of tokens": (1, lambda value, folder: tokens(folder, seq_len=value)),
    "stride of tokens": (1, lambda value, folder: tokens(folder, stride=value)),
    "chunk_rows": (1, lambda value, folder: written(folder, chunk_rows=value)),
    "workers of write_zarr": (1, lambda value, folder: written(folder, workers=value)),
    "epochs": (1, lambda value, _: disjoint(DATA, DATA, value)),
    **{
        name: (least, lambda value, _, name=name: loader(**{name: value}))  # type: ignore[misc]
        for name, least in (
            ("num_epochs", 1), ("num_workers", 0), ("prefetch", 0), ("prefetch_bytes", 1), ("microbatches", 1),
        )
    },
    "shard_index": (0, lambda value, _: loader(shard_index=value, shard_count=2)),
    "shard_count": (1, lambda value, _: loader(shard_index=0, shard_count=value)),
}  # fmt: skip


@pytest.mark.parametrize("below", [1, 3])
@pytest.mark.parametrize("name", LEAST)
def test_numbers_that_are_too_low(name: str, below: int, tmp_path: Path) -> None:
    least, call = LEAST[name]
    match = f"{re.escape(name.split(maxsplit=1)[0])}={least - below}: pass {least} or more"
    with pytest.raises(LoadaxError, match=match):
        call(least - below, tmp_path)


SEEDS: dict[str, Call] = {
    "shuffle": lambda value, _: DATA.shuffle(value),
    "map": lambda value, _: DATA.map(divmod, rng=True, seed=value),
    "sample": lambda value, _: DATA.sample(np.ones(100), seed=value),
    "mix": lambda value, _: loadax.mix([DATA, DATA], [1, 1], seed=value),
    "random crop": lambda value, _: loadax.RandomCrop(seed=value),
}


@pytest.mark.parametrize("value", [1.5, "0", np.array([1, 2])])
@pytest.mark.parametrize("name", SEEDS)
def test_seeds(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(LoadaxError, match=r"seed=.*: pass an int"):
        SEEDS[name](value, tmp_path)


CHOICES: dict[str, Call] = {
    "method": lambda value, _: DOCUMENTS.pack(8, method=value),
    "long": lambda value, _: DOCUMENTS.pack(8, method="best_fit", long=value),
    "stop": lambda value, _: UNTYPED.mix([DATA, DATA], [1, 1], stop=value),
    "by": lambda value, _: UNTYPED.mix([DATA, DATA], [1, 1], by=value),
    "missing": lambda value, folder: UNTYPED.from_tensorstore({"driver": "zarr"}, missing=value),
    "fit": lambda value, folder: UNTYPED.from_images(folder, 8, fit=value),
    "quality": lambda value, folder: UNTYPED.from_images(folder, 8, quality=value),
    "damaged": lambda value, folder: UNTYPED.from_images(folder, 8, damaged=value),
    "compression": lambda value, folder: written(folder, compression=value),
    **{name: lambda value, _, name=name: loader(**{name: value}) for name in ("remainder", "worker_type", "on_error")},  # type: ignore[misc]
}


@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.arange(3), ["drop"], 3, True, {}, "none"])
@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(LoadaxError, match=f"{name}="):
        CHOICES[name](value, tmp_path)


FLAGS: dict[str, Call] = {
    "resume": lambda value, folder: written(folder, resume=value),
    "overwrite": lambda value, folder: written(folder, overwrite=value),
    "progress": lambda value, folder: written(folder, progress=value),
    "overwrite of cache": lambda value, folder: DATA.cache(folder / "c.zarr", overwrite=value),
    "progress of cache": lambda value, folder: DATA.cache(folder / "c.zarr", progress=value),
    "progress of filter": lambda value, _: DATA.filter(lambda _: True, progress=value),
    "progress of split_by": lambda value, _: DATA.split_by("x", 0.5, progress=value),
    "progress of pack": lambda value, _: DOCUMENTS.pack(8, progress=value),
    "rng": lambda value, _: DATA.map(lambda example: example, rng=value),
    "elementwise": lambda value, _: DATA.map_batch(lambda batch: batch, elementwise=value),
    "targets": lambda value, folder: tokens(folder, targets=value),
    "segment_ids": lambda value, folder: tokens(folder, segment_ids=value),
    "contiguous": lambda value, _: DATA.split(0.8, contiguous=value),
    "allow_shared_rows": lambda value, _: DATA.split(0.8, allow_shared_rows=value),
    "truncate": lambda value, _: DATA.pad({"x": 8}, truncate=value),
    "add_lengths": lambda value, _: DATA.pad({"x": 8}, add_lengths=value),
}


@pytest.mark.parametrize("value", ["no", "", np.array([True, False]), 0, float("nan")])
@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(LoadaxError, match=f"{name.split(maxsplit=1)[0]}=.*: pass True or False"):
        FLAGS[name](value, tmp_path)


def test_a_store_is_not_deleted_for_a_string(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(LoadaxError, match="overwrite='no': pass True or False"):
        written(tmp_path, overwrite="no")
    assert len(UNTYPED.from_zarr(tmp_path / "w.zarr")) == 100


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: UNTYPED.concat(3), r"datasets=3: pass a list of datasets: concat\(\[one, other\]\)"),
        (lambda: UNTYPED.concat(DATA), r"datasets=Dataset\(100 rows.* is one dataset: pass a list"),
        (lambda: UNTYPED.concat({"a": DATA}), r"datasets=\{'a': .*pass a list of datasets"),
        (lambda: UNTYPED.mix(3, [1]), "datasets=3: pass a list of datasets, or a dict of them"),
        (lambda: UNTYPED.mix(DATA, [1]), "is one dataset: pass a list of datasets"),
        (lambda: loader().find(3, dataset=["a"]), r"dataset=\['a'\] is not a part"),
        (lambda: loader().digest(3), "steps=3: pass a range of consecutive steps"),
        (lambda: loader().trace(0, [0.5]), r"positions=\[0.5\]: pass ints of 0 or more, below 8, the batch size"),
        (lambda: SERVE(loader(), host=3), "host=3: pass the address to listen on"),
        (lambda: SERVE(loader(), port=None), "port=None: pass an int"),
        (lambda: SERVE(loader(), port=70000), "port=70000: pass 65535 or less"),
        (lambda: UNTYPED.from_images(3), "folder=3 is an int: pass the path or URL of a folder of images"),
        (lambda: UNTYPED.write_zarr(DATA, None), "path=None is a NoneType: pass the path or URL of a folder"),
        (lambda: DATA.cache(3), "path=3 is an int: pass the path or URL"),
        (lambda: loader().iterate().timeline(3), "path=3 is an int: pass the name of a .json file"),
        (
            lambda: DATA.repeat(2**60),
            "times=1152921504606846976: 100 rows would become more than 2\\*\\*62; leave repeat",
        ),
        (lambda: UNTYPED.mix([DATA], [1], stop="never").repeat(2), "times=2: the dataset never ends; leave repeat"),
        (lambda: loader(num_epochs=2**62), "num_epochs=.* makes over 2\\*\\*63 steps; pass None"),
        (
            lambda: loader(batch_size={0: 8, 2**62: 4}, num_epochs=None),
            "no run reaches step 4611686018427387904, where",
        ),
        (
            lambda: loader(num_epochs=None).rows(2**62),
            "step 4611686018427387904 is out of range: .* and below 576460752303423488",
        ),
        (lambda: DATA.split(True), "fraction=True: pass a number between 0 and 1"),
    ],
)
def test_others(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(LoadaxError, match=match):
        call()


def test_variables_that_are_no_names(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(LoadaxError, match="variables=3: pass a list of names of arrays"):
        UNTYPED.from_zarr(tmp_path / "w.zarr", variables=3)


@pytest.mark.parametrize(("chunk", "shard"), [(2**31, None), (None, 2**31), (2**31, 2**32), (64, 2**40 // 64 * 64)])
def test_chunks_and_shards_are_cut_to_the_rows(chunk: int | None, shard: int | None, tmp_path: Path) -> None:
    written(tmp_path, chunk_rows=chunk, shard_rows=shard)
    assert UNTYPED.from_zarr(tmp_path / "w.zarr").read(range(100))["x"].tolist() == list(range(100))
    shards = json.loads((tmp_path / "w.zarr" / "x" / "zarr.json").read_text())["chunk_grid"]["configuration"][
        "chunk_shape"
    ]
    assert shards[0] <= 128


@pytest.mark.parametrize("data", [DATA, MIXED])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"position": 800}, r"the state's 'position' is 800, but an epoch has only \d+ positions"),
        ({"version": True}, "the state's 'version' is True, this loadax reads 1"),
        ({"version": 1.0}, r"the state's 'version' is 1\.0, this loadax reads 1"),
        ({"epoch": 10**400}, "the state's 'epoch' is an int of 1329 bits; it must be an int from 0 to 2"),
        ({"position": 10**4000}, "the state's 'position' is an int of 13288 bits; it must"),
        ({"epoch": 2**63}, "the state's 'epoch' is 9223372036854775808; it must"),
        (
            {"epoch": 2**62},
            (
                "the state's 'epoch' is 4611686018427387904, which no run reaches|"
                "state's 'order'|but there are infinitely many"
            ),
        ),
        ({"step": np.array([1, 2])}, r"the state's 'step' is \[1, 2\]; it must"),
        ({"order": 3}, "the state's 'order' is 3, this dataset's is"),
        ({"verbs": 3, "order": "f"}, "its length, element spec, verbs, seeds or weights differ from the saved run"),
    ],
)
def test_hostile_states(data: loadax.Dataset, change: dict[str, Any], match: str) -> None:
    endless = UNTYPED.Dataloader(data, 8, num_epochs=None, num_workers=0)
    state = endless.iterate(0).get_state()
    with pytest.raises(StateError, match=match):
        endless.iterate({**state, **change})


def test_a_start_beyond_all_steps() -> None:
    for step in (2**62, 2**63, 10**400):
        with pytest.raises(StateError, match=r"start is step .*, but the run has infinitely many steps"):
            loader(num_epochs=None).iterate(step)


def test_a_loader_is_true() -> None:
    assert loader(num_epochs=None)
    assert loader(mesh=mesh_of({"data": 8}))


def test_messages_are_short() -> None:
    with pytest.raises(LoadaxError) as caught:
        DATA.shuffle(np.arange(10**6))
    assert re.fullmatch(
        r"seed=an array of shape \[1000000\]: pass an int, as in shuffle\(seed=0\); .*", str(caught.value)
    )
