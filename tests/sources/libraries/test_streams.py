from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import grain
import numpy as np
import pytest

from loadax import Dataloader, as_dataset
from loadax.errors import ArgumentError


def shards(numbers: list[int]) -> Iterator[Any]:
    for number in numbers:
        for row in range(40):
            yield {"x": 100 * number + row, "tokens": [number, row]}


def served(data: Any, start: Any = 0, **options: Any) -> tuple[list[Any], Any]:
    """Rows of the next batches, and the state after two of them."""
    state = None
    rows = []
    loader = Dataloader(data, 12, shard_index=0, shard_count=1, num_workers=2, **options)
    with loader.host_batches(start) as batches:
        for step, batch in enumerate(batches):
            rows += batch["x"].tolist()
            if step == 1:
                state = batches.get_state()
    return rows, state


def test_shards_of_hugging_face_are_lanes_with_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)  # the home folder may be read-only
    stream = datasets.IterableDataset.from_generator(shards, gen_kwargs={"numbers": list(range(6))})
    data = as_dataset(stream)
    assert repr(data) == "Dataset(a stream of 6 lanes from a Hugging Face IterableDataset)"
    assert data.spec["tokens"].shape == (2,)
    rows, state = served(data)
    assert sorted(rows) == sorted(row["x"] for row in stream)
    assert all(values[3] is not None for values in state["lanes"][0].values())
    assert served(data, state)[0] == rows[24:]


def test_iter_dataset_of_grain_is_a_lane_with_a_state() -> None:
    stream = grain.MapDataset.range(60).map(lambda x: {"x": np.int32(x)}).to_iter_dataset()
    rows, state = served(stream)
    assert rows == list(range(60))
    assert state["lanes"][0]["0"][3] is not None
    assert served(stream, state)[0] == rows[24:]


def test_generator_functions() -> None:
    def one() -> Iterator[Any]:
        yield from ({"x": np.int32(row)} for row in range(36))

    def laned(lane: int, lanes: int) -> Iterator[Any]:
        yield {"x": np.int32(lane + lanes)}

    assert served(one)[0] == list(range(36))
    loader = Dataloader(laned, 128, shard_index=0, shard_count=1)
    with loader.host_batches() as batches:
        assert sorted(next(batches)["x"].tolist()) == list(range(128, 256))
    assert repr(as_dataset(laned)).startswith("Dataset(a stream of 128 lanes from ")
    with pytest.raises(ArgumentError, match=r"is called as open_lane\(lane, lanes\)"):
        as_dataset(other)


def other(lane: int) -> Iterator[Any]:
    yield lane


def numbers_of_torch() -> Any:
    """As an IterableDataset of torch, which is not installed for tests; its class is known by name and module.

    `python -m tests.interop.trainers torch` reads those of the real one.
    """
    kind = type("IterableDataset", (), {"__module__": "torch.utils.data.dataset"})
    return type("Numbers", (kind,), {"__iter__": lambda _: iter([{"x": np.int32(row)} for row in range(24)])})()


def test_an_iterable_dataset_of_torch_is_one_lane() -> None:
    rows = numbers_of_torch()
    assert repr(as_dataset(rows)) == "Dataset(a stream of 1 lane from a torch Numbers)"
    assert served(rows)[0] == list(range(24))


def test_a_loader_of_such_a_dataset_is_refused_with_the_line_that_reads_it() -> None:
    loader = type("Loader", (), {"dataset": numbers_of_torch(), "__iter__": lambda _: iter([])})()
    with pytest.raises(ArgumentError, match=r"hand over what can be: loadax.as_dataset\(data.dataset\), a stream"):
        as_dataset(loader)
    assert served(as_dataset(loader.dataset))[0] == list(range(24))
