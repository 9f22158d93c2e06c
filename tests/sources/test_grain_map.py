"""Grain's MapDatasets: their own epochs, on any workers, and what is refused."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import pytest
from grain import experimental

import loadax
from loadax.errors import ArgumentError, LeafError, SourceError, StateError
from tests.sources.advice import follow
from tests.worker_types import WORKER_TYPES


def noise(row: Any, rng: np.random.Generator) -> Any:
    return {"x": np.int64(row), "noise": rng.integers(1 << 30)}


def pipeline(size: int = 64) -> Any:
    return grain.MapDataset.range(size).shuffle(seed=1).random_map(noise, seed=2)


def grains(dataset: Any, epochs: int) -> list[tuple[int, int]]:
    """Elements that Grain itself gives, epoch after epoch."""
    repeated = dataset.repeat(epochs)
    return [(int(each["x"]), int(each["noise"])) for each in map(repeated.__getitem__, range(len(repeated)))]


def rows(batches: Any) -> list[tuple[int, int]]:
    return [pair for batch in batches for pair in zip(batch["x"].tolist(), batch["noise"].tolist(), strict=True)]


@pytest.fixture(autouse=True)
def _x64() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("batch_size", "workers"),
    [
        (64, {"num_workers": 0}),
        (16, {"num_workers": 0}),
        (64, {"num_workers": 3}),
        (16, {"num_workers": 3}),
        pytest.param(16, {"worker_type": "process", "num_workers": 2}, marks=pytest.mark.processes),
    ],
)
def test_epochs_are_grains_own(workers: dict[str, Any], batch_size: int) -> None:
    expected = grains(pipeline(), 3)
    assert expected[:64] != expected[64:128]
    loader = loadax.Dataloader(pipeline(), batch_size, num_epochs=3, **workers)
    assert rows(loader) == expected


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
def test_a_run_is_resumed_in_the_middle_of_an_epoch(worker_type: str) -> None:
    def loader() -> loadax.Dataloader:
        return loadax.Dataloader(pipeline(), 16, num_epochs=3, worker_type=worker_type, num_workers=1)

    with iter(loader()) as iterator:
        before = rows([next(iterator) for _ in range(6)])
        state = iterator.get_state()
    assert before + rows(loader().iterate(state)) == grains(pipeline(), 3)
    assert rows([loader()[9]]) == grains(pipeline(), 3)[144:160]


def test_state_without_own_epochs_is_refused_with_own_epochs() -> None:
    with iter(loadax.Dataloader(grain.MapDataset.range(64).map(lambda x: {"x": x}), 16)) as iterator:
        state = iterator.get_state()
    with pytest.raises(StateError):
        loadax.Dataloader(grain.MapDataset.range(64).shuffle(seed=1).map(lambda x: {"x": x}), 16).iterate(state)


@pytest.mark.parametrize("worker_type", WORKER_TYPES)
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


def test_own_epochs_in_a_concatenation_a_mixture_and_after_maps() -> None:
    expected = grains(pipeline(8), 2)
    both = loadax.concat([pipeline(8), pipeline(8)])
    assert rows(loadax.Dataloader(both, 16, num_epochs=2)) == expected[:8] * 2 + expected[8:] * 2
    mixed = loadax.mix([pipeline(8), pipeline(8)], weights=[1, 1])
    first, second = (sorted(rows([batch])) for batch in loadax.Dataloader(mixed, 16, num_epochs=2))
    assert (first, second) == (sorted(expected[:8] * 2), sorted(expected[8:] * 2))
    ten = grains(pipeline(10), 2)
    mapped = loadax.as_dataset(pipeline(10)).map(lambda row: {**row, "x": row["x"] + 1}).subset_per_epoch(range(2, 10))
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


def test_rows_are_found_and_a_second_iteration_of_the_same_epochs_warns() -> None:
    loader = loadax.Dataloader(pipeline(), 16, num_epochs=2)
    assert [(place.step, place.position) for place in loader.find(row=20)] == [(1, 4), (5, 4)]
    list(loader)
    with pytest.warns(UserWarning, match="for whole epochs"):
        next(iter(loader))


def even(example: Any) -> bool:
    return bool(example["x"] % 2 == 0)


def rows_of(data: Any, epochs: int, partition: Any = None) -> list[list[int]]:
    """The leaf x of each epoch, read by a loader whose batch is an epoch."""
    spec = jax.sharding.PartitionSpec() if partition is None else partition
    return [batch["x"].tolist() for batch in loadax.Dataloader(data, len(data), num_epochs=epochs, partition=spec)]


def test_rows_that_a_filter_of_grain_leaves_out_are_a_list() -> None:
    base = grain.MapDataset.range(16).map(lambda x: {"x": x})
    chains = [
        base.filter(even),
        base.filter(even).map(lambda row: {"x": row["x"] + 1}),
        base.filter(even).filter(lambda row: row["x"] > 4)[3:14],
        grain.MapDataset.concatenate([base, base.filter(even)]),
        base.filter(even).repeat(2),
    ]
    for chain in chains:
        kept = [row["x"] for row in map(chain.__getitem__, range(len(chain))) if row is not None]
        for dataset in (loadax.from_grain(chain), loadax.as_dataset(chain), loadax.from_source(chain)):
            assert len(dataset) == len(kept)
            assert rows_of(dataset, 2) == [kept, kept]
    data = loadax.from_grain(base.filter(even))
    loader = loadax.Dataloader(data.shuffle(0), 8)
    assert sorted(loader[0]["x"].tolist()) == list(range(0, 16, 2))
    assert loader.rows(0).tolist() == loader[0]["x"].tolist()
    assert [(place.step, place.position) for place in loader.find(6)] == [(0, loader[0]["x"].tolist().index(6))]
    assert loader.find(5) == []
    train, test = data.split(0.5)
    assert len(train) + len(test) == 8


def test_a_random_map_after_a_filter_draws_as_grain_does() -> None:
    filtered = grain.MapDataset.range(16).filter(lambda x: x % 3 == 1)
    chain = filtered.random_map(noise, seed=4).map(lambda row: row)
    expected = [
        [(int(row["x"]), int(row["noise"])) for row in map(chain.__getitem__, range(start, start + 16)) if row]
        for start in (0, 16)
    ]
    data = loadax.from_grain(chain)
    assert [rows([data.read(range(5), epoch)]) for epoch in (0, 1)] == expected
    assert expected[0] != expected[1]
    with pytest.raises(ArgumentError, match="call it before random maps"):
        data.filter(even)


def test_an_index_keeps_the_list_of_a_filter_of_grain(tmp_path: Path) -> None:
    asked: list[int] = []

    def judge(x: int) -> bool:
        asked.append(x)
        return x % 2 == 0

    base = grain.MapDataset.range(200).filter(judge)
    index = tmp_path / "index"
    for most in (300, 100):  # a sample of the rows, and all of them; then a sample alone
        asked.clear()
        assert len(loadax.from_grain(base, index=index, key="even")) == 100
        assert len(asked) < most
    with pytest.raises(ArgumentError, match=r"needs key=, a text that you change with the data"):
        loadax.from_grain(base, index=index)


def test_a_filter_that_keeps_nothing() -> None:
    def large(x: int) -> bool:
        return x > 8

    base = grain.MapDataset.range(9)
    message = r"keeps none of 9 rows; check what the \.filter of the Grain dataset returns .*: fn\(base\[0\]\)$"
    with pytest.raises(ArgumentError, match=message):
        loadax.from_grain(base.filter(large))
    assert large(base[0]) is False
    with pytest.raises(ArgumentError, match="key=3: pass a str that you change with the data and its functions"):
        loadax.from_grain(base.filter(large), key=3)  # type: ignore[arg-type]


def test_a_filter_that_leaves_out_other_rows_in_every_epoch_is_refused() -> None:
    base = grain.MapDataset.range(16).map(lambda x: {"x": x})
    for sparse in (
        base.shuffle(seed=1).filter(even),
        base.filter(even).shuffle(seed=1),
        base.random_map(lambda row, rng: {"x": int(rng.integers(9))}, seed=1).filter(even),
        grain.MapDataset.mix([base, base.filter(even)]),
    ):
        with pytest.raises(
            ArgumentError,
            match=r"pass the dataset with its filter alone, and .*: "
            r"loadax\.from_grain\(base\.filter\(fn\)\)\.shuffle\(seed\)\.map\(fn, rng=True\)",
        ):
            loadax.Dataloader(sparse, 8)


def test_rows_of_none_are_an_error_that_names_row_and_epoch() -> None:
    holes = grain.MapDataset.range(8).shuffle(seed=1).map(lambda x: None if x == 3 else x)
    hole = [holes[8 + row] for row in range(8)].index(None)
    with pytest.raises(LeafError, match=rf"row {hole}: the Grain dataset gave None .* in epoch 1; return one"):
        loadax.as_dataset(holes).read([hole], epoch=1)
    fixed = grain.MapDataset.range(8).map(lambda x: None if x == 3 else x)
    with pytest.raises(LeafError, match=r"^row 3: .* leave them out: loadax\.from_grain") as caught:
        loadax.as_dataset(fixed).read(range(8))
    assert list(follow(caught.value, data=fixed)[0]) == [0, 1, 2, 4, 5, 6, 7]


def test_error_of_an_element_gets_its_row_and_epoch() -> None:
    broken = grain.MapDataset.range(8).map(lambda x: 1 // (x - 2))
    with pytest.raises(ZeroDivisionError) as caught:
        loadax.Dataloader(broken, 8, num_epochs=2)[1]
    assert any("which is row 2 of epoch 1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "chain",
    [
        lambda base: base.repeat(),
        lambda base: base.shuffle(seed=3).repeat(),
        lambda base: base.shuffle(seed=3).repeat(reseed_each_epoch=False),
        lambda base: base.seed(5).shuffle().repeat().map(lambda row: {"x": row["x"] + 1}),
        lambda base: base.repeat().random_map(lambda row, rng: {"x": row["x"] * 100 + rng.integers(99)}, seed=1),
        lambda base: base.filter(even).repeat(),
        lambda base: base.repeat().filter(even),
    ],
)
def test_dataset_that_repeat_made_endless_has_the_epochs_before_it(chain: Any) -> None:
    endless = chain(grain.MapDataset.range(10).map(lambda x: {"x": x}))
    assert len(endless) > 1 << 62
    data = loadax.as_dataset(endless)
    assert len(data) in (5, 10)
    expected = [row["x"] for row in map(endless.__getitem__, range(30)) if row is not None]
    assert list(itertools.chain.from_iterable(rows_of(data, 3))) == expected


def test_endless_mixture_of_unknown_epochs_is_refused_or_cut() -> None:
    base = grain.MapDataset.range(4).map(lambda x: {"x": x})
    mixed = grain.MapDataset.mix([base.repeat(), base.shuffle(seed=1).repeat()], weights=[1, 3])
    for endless in (mixed, mixed.map(lambda row: row), base.repeat()[1:]):
        with pytest.raises(ArgumentError, match=r"is endless, and its \w+ hides how long an epoch is") as caught:
            loadax.as_dataset(endless)
        (cut,) = follow(caught.value, data=endless, rows=12)
        assert rows_of(cut, 1) == [[endless[row]["x"] for row in range(12)]]
    cut = loadax.from_grain(mixed[:8])
    with pytest.raises(SourceError, match=r"epoch 1: the Grain dataset is a slice of one without end, .*num_epochs=1"):
        cut.read([0], epoch=1)


def test_batches_are_refused_and_made_by_the_loader() -> None:
    message = r"makes batches \(BatchMapDataset\(batch_size=8.*pass the dataset before \.batch\(\), and batch_size="
    for batched in (pipeline().batch(8), pipeline().batch(8).map(lambda batch: batch)):
        for way in (lambda data: loadax.Dataloader(data, 2), loadax.from_source, loadax.from_grain):
            with pytest.raises(ArgumentError, match=message):
                way(batched)
    assert rows(loadax.Dataloader(pipeline(), batch_size=8)) == grains(pipeline(), 1)


TEN = grain.MapDataset.range(10).map(lambda x: {"x": x})


def test_arguments_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    base = grain.MapDataset.range(8).map(lambda x: {"x": x})
    for data in (base, [{"x": 1}]):
        with pytest.raises(ArgumentError, match=r"^index=.* the data has no filter; leave it out"):
            loadax.from_grain(data, index=tmp_path)
        with pytest.raises(ArgumentError, match=r"^key='a' is for .* the data has no filter; leave it out"):
            loadax.from_grain(data, key="a")


def test_iterators_of_grain_are_refused() -> None:
    source = [{"x": row} for row in range(8)]
    sampler = grain.samplers.IndexSampler(8, shard_options=grain.sharding.NoSharding(), shuffle=False, num_epochs=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler)
    before, records = (
        r"Grain's \w+, .*pass the MapDataset before \.to_iter_dataset\(\)",
        r"Grain's \w+, .*; pass its data source",
    )
    iterated = pipeline().to_iter_dataset()
    for data, message in ((iterated, before), (iter(iterated), before), (loader, records), (iter(loader), records)):
        with pytest.raises(ArgumentError, match=message):
            loadax.from_grain(data)
    with pytest.raises(ArgumentError, match=r": loadax\.from_source\(data_source\)\.shuffle\(seed\)\.map\(fn\)"):
        loadax.Dataloader(loader, 8)
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
        reason = f"{name} needs the same rows in every epoch, but the Grain dataset shuffles or maps at random"
        assert str(caught.value).startswith(reason)
        remedy = "or leave keep_on_device out" if name == "keep_on_device" else ".shuffle(seed).map(fn, rng=True)"
        assert str(caught.value).endswith(remedy)


def test_verbs_about_rows_take_rows_that_stay() -> None:
    train, test = loadax.as_dataset(TEN).split(0.5)
    assert sorted([*train.read(range(len(train)))["x"], *test.read(range(len(test)))["x"]]) == list(range(10))
    documents = grain.MapDataset.source([np.arange(3), np.arange(2), np.arange(1)])
    assert len(loadax.as_dataset(documents).pack(3, method="best_fit")) == 2
    assert loadax.Dataloader(TEN, 8, keep_on_device=True)[0]["x"].tolist() == list(range(8))


class Shards:
    """As Grain's data sources of files: many records are read at once."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        return {"x": row}

    def __getitems__(self, rows: Any) -> list[Any]:
        self.calls.append(len(rows))
        return [{"x": row} for row in rows]


def test_data_sources_are_read_many_rows_at_once() -> None:
    source = Shards()
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    data = loadax.from_grain(source)
    assert data.read([5, 39])["x"].tolist() == [5, 39]
    assert source.calls[-1] == 2
    within = loadax.from_grain(grain.MapDataset.source(source))
    assert within.read([5, 39], epoch=1)["x"].tolist() == [5, 39]
    assert source.calls == [1, 1, 2, 1, 1, 2]  # one row, read twice, tells what a row is


def test_a_random_map_alone_leaves_rows_what_they_are() -> None:
    """So that verbs about rows work; verbs about values are refused, as after a random map of loadax."""
    chain = grain.MapDataset.range(32).random_map(noise, seed=2)
    data = loadax.from_grain(chain)
    first, rest = data.split(0.5)
    assert sorted([*first.read(range(len(first)))["x"], *rest.read(range(len(rest)))["x"]]) == list(range(32))
    assert rows([data.read(range(32), 1)]) == grains(chain, 2)[32:]
    assert len(data.exclude([3])) == 31
    verbs: list[Callable[[], Any]] = [lambda: data.cache("nowhere"), lambda: data.filter(even), lambda: data.pack(4)]
    for verb in verbs:
        with pytest.raises(ArgumentError, match="random"):
            verb()
    with pytest.raises(ArgumentError):
        loadax.Dataloader(data, 8, keep_on_device=True)


def test_a_dataset_that_grows_is_an_error() -> None:
    records = [1, 2, 3]
    data = loadax.from_grain(grain.MapDataset.source(records).map(lambda x: {"x": x}))
    assert data.read([2])["x"].tolist() == [3]
    records.append(4)
    with pytest.raises(SourceError, match=r"the Grain dataset had 3 rows and has 4 now; open it again"):
        data.read([2])
