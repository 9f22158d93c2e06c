"""Reads datasets of the real torch, for whose classes the suite has stand-ins: rows, resuming and refusals."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

import loadax
from loadax.errors import ArgumentError

ROWS, BATCH = 48, 8
LANES = 4


class Squares(torch_data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.arange(3) + row, "square": row * row}


class Numbers(torch_data.IterableDataset):  # type: ignore[misc]
    """Every `step`-th row from the first on."""

    def __init__(self, first: int = 0, step: int = 1):
        self.first, self.step = first, step

    def __iter__(self) -> Iterator[Any]:
        for row in range(self.first, ROWS, self.step):
            yield {"x": torch.arange(3) + row, "square": row * row}


class Resumable(Numbers):
    """With a state, as those of `torchdata.stateful_dataloader` have."""

    def __iter__(self) -> "Resumable":
        return self

    def __next__(self) -> Any:
        if self.first >= ROWS:
            raise StopIteration
        self.first += 1
        return Squares()[self.first - 1]

    def state_dict(self) -> dict[str, int]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["first"]


def steps(data: Any, start: Any = 0, **options: Any) -> tuple[list[list[int]], Any]:
    """First numbers of the rows of every batch, and the state after two of them."""
    found, state = [], None
    with loadax.Dataloader(data, BATCH, shard_index=0, shard_count=1, **options).host_batches(start) as batches:
        for batch in batches:
            found.append(batch["x"][:, 0].tolist())
            np.testing.assert_array_equal(batch["square"], batch["x"][:, 0] ** 2)
            state = batches.get_state() if len(found) == 2 else state
    return found, state


def resumed(data: Any, **options: Any) -> list[list[int]]:
    """The batches of a run; what follows its state is what followed it."""
    found, state = steps(data, **options)
    assert steps(data, state, **options)[0] == found[2:]
    return found


def iterable_datasets() -> None:
    in_order = np.arange(ROWS).reshape(-1, BATCH).tolist()
    assert repr(loadax.as_dataset(Numbers())) == "Dataset(a stream of 1 lane from a torch Numbers)"
    assert resumed(Numbers()) == in_order
    stream = loadax.from_stream(Numbers, lanes=LANES)
    assert list(map(sorted, resumed(stream, num_workers=2))) == in_order
    stateful = loadax.from_stream(lambda lane, lanes: Resumable(), lanes=1)
    assert resumed(stateful) == in_order
    print("torch: an IterableDataset is read as 1 lane and as", LANES)


def map_style_datasets() -> None:
    x = torch.arange(ROWS)[:, None] + torch.arange(3)
    named = torch_data.TensorDataset(x, x[:, 0] ** 2)
    half = ROWS // 2
    kinds = {
        "Dataset": loadax.as_dataset(Squares()),
        "Subset": loadax.as_dataset(torch_data.Subset(Squares(), range(ROWS))),
        "ConcatDataset": loadax.as_dataset(
            torch_data.ConcatDataset(torch_data.Subset(Squares(), range(at, at + half)) for at in (0, half))
        ),
        "StackDataset": loadax.as_dataset(torch_data.StackDataset(x=x, square=x[:, 0] ** 2)),
        "TensorDataset": loadax.as_dataset(named).map(lambda row: {"x": row[0], "square": row[1]}),
        "tensors": loadax.as_dataset({"x": x, "square": x[:, 0] ** 2}),
    }
    for name, data in kinds.items():
        found = resumed(data.shuffle(0), num_epochs=2)
        assert found == resumed(kinds["Dataset"].shuffle(0), num_epochs=2), name
        assert sorted(np.ravel(found[: ROWS // BATCH]).tolist()) == list(range(ROWS)), name
    assert steps(kinds["Subset"], worker_type="process", num_workers=1)[0] == steps(kinds["Subset"])[0]
    print("torch:", ", ".join(kinds), "are read at any row")


def advice(data: Any) -> str:
    """The line of code that an error says to use instead."""
    try:
        loadax.as_dataset(data)
    except ArgumentError as error:
        return str(error).partition("hand over what can be: ")[2].partition(",")[0]
    raise AssertionError(f"{data} was not refused")


def dataloaders() -> None:
    """Are refused with a line that reads their dataset."""
    for dataset in (Squares(), Numbers()):
        data = torch_data.DataLoader(dataset, batch_size=4)
        line = advice(data)
        assert steps(eval(line, {"loadax": loadax, "data": data}))[0] == steps(dataset)[0], line
        print("torch: instead of a DataLoader,", line)


if __name__ == "__main__":
    iterable_datasets()
    map_style_datasets()
    dataloaders()
