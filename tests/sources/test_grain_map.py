"""Grain's MapDatasets: their own epochs, on any workers, and what is refused."""

import subprocess
import sys
from typing import Any

import grain
import jax
import numpy as np
import pytest
from grain import experimental

import loadax
from loadax.errors import ArgumentError, LeafError, StateError


def noise(row: Any, rng: np.random.Generator) -> Any:
    return {"x": np.int64(row), "noise": rng.integers(1 << 30)}


def pipeline(size: int = 64) -> Any:
    return grain.MapDataset.range(size).shuffle(seed=1).random_map(noise, seed=2)


def grains(dataset: Any, epochs: int) -> list[tuple[int, int]]:
    """What Grain itself gives, an epoch behind the other."""
    repeated = dataset.repeat(epochs)
    return [(int(each["x"]), int(each["noise"])) for each in map(repeated.__getitem__, range(len(repeated)))]


def rows(batches: Any) -> list[tuple[int, int]]:
    return [pair for batch in batches for pair in zip(batch["x"].tolist(), batch["noise"].tolist(), strict=True)]


@pytest.fixture(autouse=True)
def _x64() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "workers", [{"num_workers": 0}, {"num_workers": 3}, {"worker_type": "process", "num_workers": 2}]
)
@pytest.mark.parametrize("batch_size", [64, 16])
def test_epochs_are_grains_own(workers: dict[str, Any], batch_size: int) -> None:
    expected = grains(pipeline(), 3)
    assert expected[:64] != expected[64:128]
    loader = loadax.Dataloader(pipeline(), batch_size, num_epochs=3, **workers)
    assert rows(loader) == expected


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_run_is_resumed_in_the_middle_of_an_epoch(worker_type: str) -> None:
    def loader() -> loadax.Dataloader:
        return loadax.Dataloader(pipeline(), 16, num_epochs=3, worker_type=worker_type, num_workers=1)

    with iter(loader()) as iterator:
        before = rows([next(iterator) for _ in range(6)])
        state = iterator.get_state()
    assert before + rows(loader().iterate(state)) == grains(pipeline(), 3)
    assert rows([loader()[9]]) == grains(pipeline(), 3)[144:160]


def test_a_state_of_rows_as_they_lie_is_not_one_of_grains_epochs() -> None:
    with iter(loadax.Dataloader(grain.MapDataset.range(64).map(lambda x: {"x": x}), 16)) as iterator:
        state = iterator.get_state()
    with pytest.raises(StateError):
        loadax.Dataloader(grain.MapDataset.range(64).shuffle(seed=1).map(lambda x: {"x": x}), 16).iterate(state)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_loadax_may_shuffle_on_top(worker_type: str) -> None:
    """Each epoch then has Grain's elements of that epoch, in another order."""
    data = loadax.as_dataset(pipeline()).shuffle(seed=5)
    loader = loadax.Dataloader(data, 64, num_epochs=3, worker_type=worker_type, num_workers=1)
    everything = grains(pipeline(), 3)
    for epoch, batch in enumerate(loader):
        grains_own = everything[64 * epoch : 64 * epoch + 64]
        assert rows([batch]) != grains_own
        assert sorted(rows([batch])) == sorted(grains_own)
        order = loader.rows(epoch).tolist()
        assert rows([batch]) == [grains_own[row] for row in order]


def test_within_a_concatenation_a_mixture_and_behind_maps() -> None:
    expected = grains(pipeline(8), 2)
    both = loadax.concat([pipeline(8), pipeline(8)])
    assert rows(loadax.Dataloader(both, 16, num_epochs=2)) == expected[:8] * 2 + expected[8:] * 2
    mixed = loadax.mix([pipeline(8), pipeline(8)], weights=[1, 1])
    first, second = (sorted(rows([batch])) for batch in loadax.Dataloader(mixed, 16, num_epochs=2))
    assert (first, second) == (sorted(expected[:8] * 2), sorted(expected[8:] * 2))
    ten = grains(pipeline(10), 2)
    mapped = loadax.as_dataset(pipeline(10)).map(lambda row: {**row, "x": row["x"] + 1})[2:]
    assert rows(loadax.Dataloader(mapped, 8, num_epochs=2)) == [(x + 1, n) for x, n in ten[2:10] + ten[12:]]
    assert rows([loadax.as_dataset(pipeline(8)).repeat(2).read(range(16))]) == expected


def test_any_grain_chain_gives_its_own_epochs() -> None:
    base = grain.MapDataset.range(12)
    chains = [
        base,
        base.seed(3).shuffle(),
        base.shuffle(seed=3)[2:8],
        base.shuffle(seed=3).repeat(2),
        base.map_with_index(lambda index, x: index * 100 + x),
        grain.MapDataset.mix([base.shuffle(seed=1), base], weights=[1, 3]),
        grain.MapDataset.concatenate([base.shuffle(seed=1), base]),
        experimental.WindowShuffleMapDataset(base, window_size=4, seed=1),
        grain.MapDataset.source([5, 6, 7]),
    ]
    for chain in chains:
        size = len(chain)
        loader = loadax.Dataloader(chain, size, num_epochs=2, partition=jax.sharding.PartitionSpec())
        assert [batch.tolist() for batch in loader] == [
            [chain[epoch * size + row] for row in range(size)] for epoch in range(2)
        ]


def test_where_a_record_stood_is_found() -> None:
    loader = loadax.Dataloader(pipeline(), 16, num_epochs=2)
    assert [(place.step, place.position) for place in loader.find(row=20)] == [(1, 4), (5, 4)]


def test_a_second_iteration_of_the_same_epochs_warns() -> None:
    loader = loadax.Dataloader(pipeline(), 64)
    list(loader)
    with pytest.warns(UserWarning, match="for more epochs"):
        iter(loader).close()


def even(example: Any) -> bool:
    return bool(example["x"] % 2 == 0)


def test_a_filter_of_grain_is_refused_and_loadax_filters() -> None:
    base = grain.MapDataset.range(16).map(lambda x: {"x": x})
    for sparse in (base.filter(even), base.filter(even).map(lambda row: row), base.shuffle(seed=1).filter(even)):
        with pytest.raises(
            ArgumentError,
            match=r"hand over the dataset before it, and filter .*loadax\.from_source\(base\)\.filter\(fn\)",
        ):
            loadax.Dataloader(sparse, 8)
    loader = loadax.Dataloader(loadax.from_source(base).filter(even).shuffle(0), 8)
    assert sorted(loader[0]["x"].tolist()) == list(range(0, 16, 2))


def test_rows_of_none_are_an_error_that_names_row_and_epoch() -> None:
    holes = grain.MapDataset.range(8).shuffle(seed=1).map(lambda x: None if x == 3 else x)
    hole = [holes[8 + row] for row in range(8)].index(None)
    message = rf"row {hole}: the Grain dataset gave None .* in epoch 1; .*loadax\.from_source\(base\)\.filter\(fn\)"
    with pytest.raises(LeafError, match=message):
        loadax.as_dataset(holes).read([hole], epoch=1)


def test_what_an_element_raises_gets_its_row_and_epoch() -> None:
    broken = grain.MapDataset.range(8).map(lambda x: 1 // (x - 2))
    with pytest.raises(ZeroDivisionError) as caught:
        loadax.Dataloader(broken, 8, num_epochs=2)[1]
    assert any("which is row 2 of epoch 1" in note for note in caught.value.__notes__)


def test_one_without_end_is_refused_and_runs_for_ever_otherwise() -> None:
    with pytest.raises(ArgumentError, match=r"hand over the dataset before \.repeat\(\), and pass num_epochs=None"):
        loadax.Dataloader(pipeline().repeat(), 64)
    loader = loadax.Dataloader(pipeline(), 64, num_epochs=None)
    assert rows([loader[7]]) == grains(pipeline(), 8)[-64:]


def test_batches_are_refused_and_made_by_the_loader() -> None:
    message = (
        r"makes batches \(BatchMapDataset\(batch_size=8.*hand over the dataset before \.batch\(\), and pass batch_size="
    )
    for batched in (pipeline().batch(8), pipeline().batch(8).map(lambda batch: batch)):
        with pytest.raises(ArgumentError, match=message):
            loadax.Dataloader(batched, 2)
        with pytest.raises(ArgumentError, match=message):
            loadax.from_source(batched)
    assert rows(loadax.Dataloader(pipeline(), batch_size=8)) == grains(pipeline(), 1)


def test_what_grain_iterates_over_is_refused() -> None:
    for iterated in (pipeline().to_iter_dataset(), iter(pipeline().to_iter_dataset())):
        with pytest.raises(
            ArgumentError, match=r"Grain's \w+, .*hand over the MapDataset before \.to_iter_dataset\(\)"
        ):
            loadax.Dataloader(iterated, 8)
    source = [{"x": row} for row in range(8)]
    sampler = grain.samplers.IndexSampler(8, shard_options=grain.sharding.NoSharding(), shuffle=False, num_epochs=1)
    with pytest.raises(
        ArgumentError,
        match=r"hand over its data source, .*: loadax\.from_source\(data_source\)\.shuffle\(seed\)\.map\(fn\)",
    ):
        loadax.Dataloader(grain.DataLoader(data_source=source, sampler=sampler), 8)
    followed = loadax.Dataloader(loadax.from_source(source).shuffle(0).map(lambda row: row), 8)
    assert sorted(followed[0]["x"].tolist()) == list(range(8))


def test_verbs_about_rows_need_rows_that_stay() -> None:
    varying = loadax.as_dataset(pipeline())
    verbs: dict[str, Any] = {
        "split()": lambda: varying.split(0.5),
        "exclude()": lambda: varying.shuffle(0).exclude([1]),
        "filter()": lambda: varying.filter(even),
        "cache()": lambda: varying.cache("nowhere"),
        "windows()": lambda: varying.windows(2),
        "pack()": lambda: varying.pack(4),
        "keep_on_device": lambda: loadax.Dataloader(varying, 8, keep_on_device=True),
    }
    for name, call in verbs.items():
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value).startswith(f"{name} selects rows, but the Grain dataset shuffles or maps at random")
        assert ".shuffle(seed).map(fn, rng=True)" in str(caught.value)


def test_rows_that_stay_are_split_filtered_packed_and_kept() -> None:
    base = grain.MapDataset.range(64).map(lambda x: {"x": x})
    train, test = loadax.as_dataset(base).split(0.5)
    assert sorted([*train.read(range(len(train)))["x"], *test.read(range(len(test)))["x"]]) == list(range(64))
    shuffled = train.shuffle(3).map(lambda row, rng: {"x": row["x"] + 0 * rng.integers(9)}, rng=True)
    assert len(list(loadax.Dataloader(shuffled, 8))) == len(train) // 8
    assert len(loadax.as_dataset(base).filter(even)) == 32
    documents = grain.MapDataset.source([np.arange(3), np.arange(2), np.arange(1)])
    assert len(loadax.as_dataset(documents).pack(3, method="best_fit")) == 2
    assert loadax.Dataloader(base, 8, keep_on_device=True)[1]["x"].tolist() == list(range(8, 16))


def test_grain_is_recognised_without_being_imported() -> None:
    program = (
        "import sys, loadax, numpy; loadax.as_dataset(numpy.arange(3)); loadax.from_source([1]); "
        "assert 'grain' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
