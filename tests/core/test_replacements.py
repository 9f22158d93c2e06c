"""Names of torch, Grain and Hugging Face get a sentence that says what to write; following it works."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataloader, from_arrays
from loadax.core.replacements import for_dataloader, for_dataset
from loadax.errors import ArgumentError, SourceError

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
    assert str(caught.value).endswith(str(for_dataloader(name)))


@pytest.mark.parametrize(
    ("name", "guess"),
    [("batchsize", "; did you mean batch_size?"), ("num_worker", "; did you mean num_workers?"), ("colour", "")],
)
def test_an_argument_that_nobody_has(name: str, guess: str) -> None:
    with pytest.raises(TypeError) as caught:
        Dataloader(DATA, 8, **{name: 8})  # type: ignore[arg-type]
    assert str(caught.value) == f"Dataloader() got an unexpected keyword argument {name!r}{guess}"


@pytest.mark.parametrize(
    "name", ["batch", "take", "skip", "seed", "random_map", "to_iter_dataset", "prefetch", "shard"]
)
def test_methods_of_other_datasets(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^'Dataset' object has no attribute '{name}': ") as caught:
        getattr(DATA, name)
    assert str(caught.value).endswith(str(for_dataset(name)))
    assert caught.value.name == name
    assert not hasattr(DATA, name)


def test_a_dataset_is_copied_pickled_and_asked_as_before() -> None:
    for other in (copy.copy(DATA), copy.deepcopy(DATA), pickle.loads(pickle.dumps(DATA))):
        assert other.read(range(64))["x"].tolist() == list(range(64))
    assert not hasattr(DATA, "__array__")
    assert getattr(DATA, "nothing", 3) == 3
    with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute 'nothing'$"):
        DATA.nothing  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("DataLoader", "it is spelt loadax.Dataloader"),
        ("from_json", r"files of JSON lines are opened by loadax.from_jsonl\(path\); .* loadax.from_source\("),
        (
            "from_generator",
            r"a generator function is .*: loadax\.from_stream\(open_lane, lanes=16\); .* to loadax.from_source",
        ),
    ],
)
def test_names_of_the_package(name: str, match: str) -> None:
    with pytest.raises(AttributeError, match=rf"^module 'loadax' has no attribute '{name}': {match}"):
        getattr(loadax, name)
    assert not hasattr(loadax, name)
    with pytest.raises(AttributeError, match=r"^module 'loadax' has no attribute 'nothing'$"):
        loadax.nothing  # type: ignore[attr-defined] # noqa: B018


def test_following_the_advice() -> None:
    """Each line of code of a hint, as it is written there."""
    data, other, fn = DATA, DATA, lambda example, rng=None: example
    names = {"data": data, "other": other, "loadax": loadax, "fn": fn, "a": 2, "b": 9, "n": 5, "rows": [1, 2]}
    hints = [
        *(
            "loadax.Dataloader(data, batch_size=8)",
            "data[:n]",
            "data[n:]",
            "data.shuffle(seed=0)",
            "data.map(fn, rng=True, seed=0)",
        ),
        *(
            "data.map(fn, rng=True)",
            "loadax.Dataloader(data, batch_size=8, prefetch=2)",
            "loadax.concat([data, other])",
            "data[a:b]",
        ),
        *("data.exclude(rows)", "data.split(0.9)", "data.spec"),
    ]
    for hint in hints:
        assert eval(hint, names) is not None
    loader = Dataloader(DATA.shuffle(seed=0), 8, remainder="pad", worker_type="process", prefetch=1)
    assert len(loader) == 8
    columns = from_arrays({"name": np.arange(3)})
    assert len(columns) == 3
    assert len(loadax.from_source([{"x": 1}, {"x": 2}])) == 2


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
    assert data.describe()
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
