"""Names of torch, Grain and Hugging Face get a sentence that says what to write; following it works."""

import copy
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import soundfile
import xarray
from PIL import Image

import loadax
from loadax import Dataloader, from_arrays
from loadax.core.replacements import replacements
from loadax.errors import ArgumentError, SourceError
from tests.sources.video.videos import write_video

DATA = from_arrays({"x": np.arange(64)})


@pytest.mark.parametrize(
    "name",
    [
        *(
            "collate_fn",
            "shuffle",
            "drop_last",
            "sampler",
            "batch_sampler",
            "pin_memory",
            "persistent_workers",
            "timeout",
        ),
        *("worker_init_fn", "generator", "prefetch_factor", "seed", "sharding"),
    ],
)
def test_arguments_of_other_loaders(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^{name}=True: Dataloader has no such argument; ") as caught:
        Dataloader(DATA, 8, **{name: True})  # type: ignore[arg-type]
    assert str(caught.value).endswith(replacements("Dataloader()")[name])


def test_devices_become_a_mesh() -> None:
    devices = jax.devices()
    for name, value in (("devices", devices[:4]), ("device", devices[0])):
        with pytest.raises(ArgumentError, match=rf"^{name}=") as caught:
            Dataloader(DATA, 8, **{name: value})  # type: ignore[arg-type]
        advised = str(caught.value).rpartition("mesh=")[2]
        mesh = eval(advised, {"jax": jax, "devices": devices[:4], "device": devices[0]})
        assert Dataloader(DATA, 8, mesh=mesh)[0]["x"].shape == (8,)


def test_other_names_of_the_batch_size() -> None:
    for name in ("global_batch_size", "per_device_batch_size"):
        with pytest.raises(ArgumentError, match=rf"^{name}=8: .*batch_size= is the number of rows of the global batch"):
            Dataloader(DATA, **{name: 8})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'batch_size'"):
        Dataloader(DATA)  # type: ignore[call-arg]


def test_transform_is_a_map_of_the_dataset() -> None:
    with pytest.raises(ArgumentError, match=r"^transform=.*: Dataloader\(data.map\(fn\), …\)"):
        Dataloader(DATA, 8, transform=dict)  # type: ignore[call-arg]
    assert Dataloader(DATA.map(dict), 8)[0]["x"].shape == (8,)


def test_describe_of_pandas() -> None:
    with pytest.raises(AttributeError, match="describe") as caught:
        DATA.describe()  # type: ignore[attr-defined]
    advised = str(caught.value).rpartition("numbers: ")[2]
    assert eval(advised, {"pandas": pd, "data": DATA})["x"]["count"] == 64
    with pytest.raises(AttributeError, match="to_pandas"):
        DATA.to_pandas()  # type: ignore[attr-defined]
    assert len(pd.DataFrame(DATA.read(range(len(DATA))))) == 64


def test_files_that_a_map_opens(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in paths:
        path.write_text(path.stem)
    known = {"loadax": loadax, "paths": paths, "open_one": lambda path: {"x": np.int64(path.read_text())}}
    for name in ("from_fits", "from_dicom"):
        advised = replacements("module")[name].rpartition("in a map: ")[2]
        assert eval(advised, known).read(range(3))["x"].tolist() == [0, 1, 2]


def test_videos_and_audio(tmp_path: Path) -> None:
    write_video(tmp_path / "x.mp4", 4)
    frames, clips = replacements("module")["from_videos"].split("; as clips ")
    known = {"loadax": loadax, "path": tmp_path / "x.mp4"}
    assert [len(eval(advised, known)) for advised in (frames, clips)] == [4, 2]
    soundfile.write(tmp_path / "x.wav", np.zeros(8000), 8000)
    assert len(eval(replacements("module")["from_wav"], {"loadax": loadax, "path": tmp_path / "x.wav"})) == 2


def test_bytes_of_images_videos_and_audio(tmp_path: Path) -> None:
    write_video(tmp_path / "x.mp4", 4)
    soundfile.write(tmp_path / "x.wav", np.zeros(800), 8000)
    Image.new("RGB", (6, 4)).save(tmp_path / "x.png")
    names = {"image": "x.png", "video": "x.mp4", "audio": "x.wav"}
    data = loadax.from_source([{leaf: (tmp_path / name).read_bytes() for leaf, name in names.items()}])
    for name, leaf, shape in (
        ("decode_jpeg", "image", (4, 6, 3)),
        ("decode_wav", "audio", (800,)),
        ("decode_mp4", "video", (2, 32, 48, 3)),
    ):
        decoded = eval(replacements("Dataset")[name], {"data": data})
        assert decoded[0][leaf].shape == shape
        with pytest.raises(AttributeError, match=name):
            getattr(data, name)


def test_rows_of_a_sparse_matrix() -> None:
    matrix = scipy.sparse.random(6, 4, density=0.5, format="csr", rng=0)
    for name in ("from_anndata", "from_h5ad", "from_csr"):
        advised = replacements("module")[name].partition(", ")[0]
        made = eval(advised, {"loadax": loadax, "matrix": matrix})
        for row, example in zip(matrix.toarray(), made, strict=True):
            assert row[example["indices"]].tolist() == example["values"].tolist()


def test_netcdf_by_xarray(tmp_path: Path) -> None:
    xarray.Dataset({"x": ("time", np.arange(6))}).to_netcdf(tmp_path / "x.nc")
    for name in ("from_netcdf", "from_xarray"):
        made = eval(replacements("module")[name], {"loadax": loadax, "xarray": xarray, "path": tmp_path / "x.nc"})
        assert made.read(range(6))["x"].tolist() == list(range(6))


@pytest.mark.parametrize(
    ("name", "guess"),
    [("batchsize", "; did you mean batch_size?"), ("num_worker", "; did you mean num_workers?"), ("colour", "")],
)
def test_an_argument_that_nobody_has(name: str, guess: str) -> None:
    with pytest.raises(TypeError) as caught:
        Dataloader(DATA, 8, **{name: 8})  # type: ignore[arg-type]
    assert str(caught.value) == f"Dataloader() got an unexpected keyword argument {name!r}{guess}"


@pytest.mark.parametrize("owner", ["Dataset", "Dataloader", "DataIterator", "module"])
def test_names_that_people_try_get_a_hint(owner: str) -> None:
    loader = Dataloader(DATA, 8)
    with iter(loader) as batches:
        owners = {"Dataset": DATA, "Dataloader": loader, "DataIterator": batches}
        value: Any = owners.get(owner, loadax)
        subject = "module 'loadax'" if owner == "module" else f"'{owner}' object"
        assert len(replacements(owner)) > 1
        for name, hint in replacements(owner).items():
            assert not hasattr(type(value), name)
            with pytest.raises(AttributeError) as caught:
                getattr(value, name)
            assert str(caught.value) == f"{subject} has no attribute {name!r}: {hint}"
            assert caught.value.name == name
            assert not hasattr(value, name)


DOCUMENTS = [{"tokens": np.arange(2 + 2 * (number % 4)), "label": np.int32(number)} for number in range(64)]

CODE = {
    ("padded_batch",): "loadax.Dataloader(data.pad({'tokens': 16}), batch_size=8)",
    ("ragged_batch",): "data.pad({'tokens': 16})",
    ("bucket_by_length", "bucket_by_sequence_length"): (
        "loadax.Dataloader(data, batch_size=loadax.Buckets('tokens', {8: 8, 16: 4}))"
    ),
    ("unbatch",): "data.flat_map(lambda row: [{'tokens': part} for part in np.split(row['tokens'], 2)], fan_out=2)",
    ("batch", "to_iter_dataset", "to_iterable_dataset"): "loadax.Dataloader(padded, batch_size=8)",
    ("prefetch",): "loadax.Dataloader(padded, batch_size=8, prefetch=2)",
    ("ignore_errors",): "loadax.Dataloader(padded, batch_size=8, on_error='mask')",
    ("take",): "data[:n]",
    ("skip",): "data[n:]",
    ("random_map",): "data.map(fn, rng=True)",
    ("head", "sample_rows"): "padded.read(range(5))['tokens']",
    ("batches", "iter_batches"): "loadax.Dataloader(padded, batch_size=8)",
    ("kfold", "cross_validation"): "data.split(5)",
    ("group_split", "GroupKFold", "GroupShuffleSplit"): "data.split(0.8, by='label')[0]",
    ("time_split", "TimeSeriesSplit"): "data.split(0.8, contiguous=True)[1]",
    ("seed",): "data.map(fn, rng=True, seed=0)",
    ("with_transform", "set_transform", "transform", "apply", "augment"): "data.map(fn)",
    ("rename_column", "rename_columns"): "data.rename({'tokens': 'inputs'})",
    ("select_columns",): "data.keep('tokens')",
    ("remove_columns", "drop_columns"): "data.drop('label')",
    ("cast", "cast_column"): "data.map(lambda row: {**row, 'label': np.float32(row['label'])})",
    ("columns", "features", "element_spec"): "padded.spec",
    ("cardinality", "num_rows", "num_examples", "size"): "range(len(data))",
    ("enumerate",): "data.map(fn, with_index=True)",
    ("sort", "sort_by"): "data.select(np.argsort(keys))",
    ("balance", "oversample", "class_weights"): "data.sample(weights)",
    ("to_list", "to_numpy"): "padded.read(range(len(padded)))['tokens']",
    ("concat", "concatenate"): "loadax.concat([data, other])",
    ("mix", "interleave"): "loadax.mix([data, other], [3, 1])",
    ("train_test_split", "random_split"): "data.split(0.9)[1]",
    ("as_numpy_iterator",): "list(iter(data))",
}


@pytest.mark.parametrize("names", CODE, ids="-".join)
def test_code_of_a_hint_works_when_pasted(names: tuple[str, ...]) -> None:
    data = loadax.from_source(DOCUMENTS)
    code = CODE[names]
    for name in names:
        written = code.replace("padded", "data").removesuffix("[1]").removesuffix("[0]").removesuffix("['tokens']")
        written = written.removeprefix("range(").removeprefix("list(")
        assert written.rstrip(")") in replacements("Dataset")[name]
    values = {"data": data, "other": data, "padded": data.pad({"tokens": 8}), "loadax": loadax, "np": np, "n": 5}
    values |= {"keys": np.arange(64)[::-1], "weights": np.arange(64)}
    made = eval(code, values | {"fn": lambda row, *number, rng=None: row})
    if isinstance(made, Dataloader):
        assert next(iter(made))["tokens"].shape[0] == 8
    elif names[0] != "columns":
        assert len(made) > 4
        assert made[4] is not None


def test_packing_hint_of_ragged_batches_works() -> None:
    assert any("data.pack(16)" in hint for hint in replacements("Dataset").values())
    assert loadax.from_source([row["tokens"] for row in DOCUMENTS]).pack(16)[0]["tokens"].shape == (16,)


ARGUMENTS = {
    ("map", "batched"): "data.pad({'tokens': 8}).map_batch(fn)",
    ("split", "shuffle"): "data.split(0.8, contiguous=True)",
    ("split", "test_size"): "data.split(0.8)",
    ("split", "random_state"): "data.split(0.8, seed=0)",
    ("split", "stratify"): "[data.filter(lambda row, k=k: row['label'] == k).split(0.5) for k in range(2)]",
}


@pytest.mark.filterwarnings("ignore:split")
def test_arguments_of_verbs_that_people_try_get_a_hint_that_works() -> None:
    data = loadax.from_source([{**row, "label": np.int32(number % 2)} for number, row in enumerate(DOCUMENTS)])
    known = {"data": data, "loadax": loadax, "fn": lambda row, number=0: row}
    for (verb, argument), code in ARGUMENTS.items():
        with pytest.raises(ArgumentError, match=rf"^{argument}=7: {verb}\(\) has no such argument; ") as caught:
            getattr(data, verb)(**{argument: 7})
        assert code.replace(".pad({'tokens': 8})", "") in str(caught.value)
        assert len(eval(code, known)) > 0
    parts = eval(ARGUMENTS["split", "stratify"], known)
    assert "train = loadax.concat([part[0] for part in parts])" in replacements("Dataset.verb()")["stratify"]
    assert len(loadax.concat([part[0] for part in parts])) > 0
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        data.map(len, colour=3)  # type: ignore[call-arg]


def test_hints_of_the_package_work(tmp_path: Path) -> None:
    h5py, pandas = pytest.importorskip("h5py"), pytest.importorskip("pandas")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(6)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "rows.json").write_text('[{"x": 1}]')
    names = {"loadax": loadax, "h5py": h5py, "json": json, "open": open, "x": np.arange(6), "data": DATA}
    names |= {"other": DATA, "frame": pandas.DataFrame({"x": [1]}), "dataset": [{"x": 1}]}
    for name, path in (("from_hdf5", "x.h5"), ("from_image_folder", "")):
        assert len(eval(replacements("module")[name], names | {"path": tmp_path / path}))
    assert len(loadax.from_source(json.loads((tmp_path / "rows.json").read_text()))) == 1
    assert len(eval("data.windows(3)", names)) == 62
    for name in ("from_pandas", "from_dict", "from_list", "concatenate", "interleave", "from_torch"):
        assert len(eval(replacements("module")[name], names)) > 0


def test_a_dataset_is_copied_pickled_and_asked_as_before() -> None:
    for other in (copy.copy(DATA), copy.deepcopy(DATA), pickle.loads(pickle.dumps(DATA))):
        assert other.read(range(64))["x"].tolist() == list(range(64))
    assert not hasattr(DATA, "__array__")
    assert getattr(DATA, "nothing", 3) == 3
    with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute 'nothing'$"):
        DATA.nothing  # type: ignore[attr-defined] # noqa: B018


def test_a_list_of_examples_as_arrays() -> None:
    examples = [{"x": 1}, {"x": 2}]
    with pytest.raises(
        SourceError, match=r"\[0\]\['x'\] is int 1, not an array; .*a list of examples, open it with loadax.from_source"
    ):
        from_arrays(examples)
    assert loadax.from_source(examples)[1]["x"] == 2


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (DATA.shuffle, r"seed=None: pass an int, as in shuffle\(seed=0\)"),
        (DATA.repeat, "times=None: pass an int; to repeat endlessly, pass num_epochs=None to the Dataloader"),
    ],
)
def test_arguments_that_are_missing(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()


def test_a_small_split_that_leaves_a_part_empty() -> None:
    seed = next(seed for seed in range(100) if not len(_quietly(seed)[1]))
    with pytest.warns(
        UserWarning, match=rf"split\(0.9, seed={seed}\) of 5 rows leaves none for the second part.*: split\(\[4, 1\]\)"
    ):
        DATA[:5].split(0.9, seed=seed)
    assert [len(part) for part in DATA[:5].split([4, 1])] == [4, 1]  # the advice


@pytest.mark.filterwarnings("ignore:split")
def test_a_small_split_that_leaves_a_part_empty_keeps_all_rows() -> None:
    for seed in range(20):
        assert sum(map(len, _quietly(seed))) == 5


def _quietly(seed: int) -> tuple[loadax.Dataset, loadax.Dataset]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DATA[:5].split(0.9, seed=seed)


def test_concat_of_nothing() -> None:
    with pytest.raises(SourceError, match="the dataset has no rows, and no spec can be inferred; leave it out"):
        loadax.concat([[], []])


def _sliced(data: loadax.Dataset) -> loadax.Dataset:
    return data[:]


@pytest.mark.parametrize(
    "verb",
    [_sliced, lambda data: data.repeat(1), lambda data: loadax.concat([data, DATA]), lambda data: data.shuffle(seed=0)],
)
def test_verbs_in_a_loop(verb: Callable[[loadax.Dataset], loadax.Dataset]) -> None:
    made = [DATA]

    def loop() -> None:
        for _ in range(1000):
            made.append(verb(made[-1]))

    with pytest.raises(
        ArgumentError,
        match="is a chain of more than 100 verbs; if a loop calls one, call it once",
    ):
        loop()
    data = made[-1]
    # What was made up to there works in all ways.
    loader = Dataloader(data, 8, num_workers=0)
    assert loader.host_batch(0)["x"].shape == (8,)
    assert loader.find(int(loader.rows(1)[3]))
    assert len(repr(pickle.loads(pickle.dumps(data)))) > 0
    assert data.order_facts
    assert len(loadax.concat([DATA] * 1000)) == 64_000
    assert len(DATA.exclude(list(range(32)))) == 32


def test_maps_in_a_loop_work() -> None:
    data = DATA
    for _ in range(1000):
        data = data.map(lambda example: {"x": example["x"] + 1})
    assert data[3]["x"] == 1003


def test_a_start_of_none_is_the_beginning() -> None:
    loader = Dataloader(DATA, 8)
    with loader.iterate(start=None) as batches:
        assert batches.step == 0
        assert next(batches)["x"][0] == 0
    assert len(next(loader.epochs(None))) == 8


def test_names_that_an_explanation_lacks(tmp_path: Path) -> None:
    both: list[Any] = [Dataloader(DATA, 8).explain(), DATA.explain()]
    for explained in both:
        with pytest.raises(AttributeError, match=r"has no attribute 'save': draw and save it") as caught:
            explained.save("order.svg")
        advised = re.search(r"\.plot\(\)\.savefig\('order\.svg'\)", str(caught.value))
        assert advised is not None
        eval(f"explained{advised[0].replace('order.svg', str(tmp_path / 'order.svg'))}", {"explained": explained})
        assert (tmp_path / "order.svg").read_text("utf-8").count("<svg") == 1
        for name in ("show", "to_json"):
            with pytest.raises(AttributeError, match=rf"has no attribute '{name}': "):
                getattr(explained, name)
        assert json.dumps(explained.to_dict())
