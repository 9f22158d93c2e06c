"""Packing of streams, the slow and obvious way, and lanes of documents for its tests."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import Dataloader, Dataset
from tests.laws.chain_rows import Row
from tests.laws.chain_verbs import Packing, Part, fitted, packed_row, packed_rows


def documents_of(lengths: list[int]) -> list[NDArray[Any]]:
    """Every token tells its document and its place."""
    return [1000 * (number + 1) + np.arange(length) for number, length in enumerate(lengths)]


def lane_rows(documents: list[NDArray[Any]], packing: Packing) -> list[Row]:
    """Packed rows of one lane in one epoch."""
    named = [{"tokens": document} for document in documents]
    parts = lane_parts(list(map(len, documents)), packing)
    return [packed_row(named, row, packing, {"tokens": np.zeros(0, np.int64)}) for row in parts]


def lane_parts(lengths: list[int], packing: Packing) -> list[list[Part]]:
    """What each packed row holds: the fullest one of those fitted, or each 8th time that of the oldest part."""
    if packing.method == "split":
        return packed_rows(lengths, packing)
    rows: list[list[Part]] = []
    held: list[Part] = []
    unread = list(enumerate(lengths))
    while unread or held:
        rows_held = min(4, len(rows) + 2)
        while unread and (
            sum(part[2] for part in held) < rows_held * packing.seq_len
            if packing.window is None
            else len(held) < packing.window
        ):
            document, length = unread.pop(0)
            if packing.long != "drop" or length <= packing.seq_len:
                starts = range(0, length, packing.seq_len)
                held += [(document, start, min(packing.seq_len, length - start)) for start in starts]
        if held:
            found = fitted(held, packing)
            chosen = found[0] if len(rows) % 8 == 7 else max(found, key=lambda row: sum(part[2] for part in row))
            rows.append(chosen)
            held = [part for part in held if part not in chosen]
    return rows


class CountedTokenizer:
    """A map that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, document: Any) -> Any:
        self.calls += 1
        return {"tokens": document}


class DocumentIterator:
    """Documents of a lane, with a state that it changes in place."""

    def __init__(self, documents: list[NDArray[Any]]):
        self._documents, self._state = documents, {"next": 0}

    def __iter__(self) -> "DocumentIterator":
        return self

    def __next__(self) -> NDArray[Any]:
        if self._state["next"] == len(self._documents):
            raise StopIteration
        self._state["next"] += 1
        return self._documents[self._state["next"] - 1]

    def state_dict(self) -> dict[str, int]:
        return self._state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._state = state


def reusing(documents: list[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Documents in one buffer, each over the one before."""
    buffer = np.zeros(max(map(len, documents)), np.int64)
    for document in documents:
        buffer[: len(document)] = document
        yield buffer[: len(document)]


def host_steps(
    data: Dataset, batch_size: int, most: int, hosts: int = 1, start: Any = 0, **options: Any
) -> tuple[list[Row], list[list[Any]]]:
    """The first batches of all hosts together, and the states of the hosts before each of them and after the last."""
    parts: list[list[Row]] = []
    states: list[list[Any]] = []
    for host in range(hosts):
        given: Any = {"num_workers": 0, "num_epochs": None, **options}
        loader = Dataloader(data, batch_size, shard_index=host, shard_count=hosts, **given)
        with loader.host_batches(start) as batches:
            states.append([batches.get_state()])
            parts.append([])
            for _ in range(most):
                parts[-1].append(next(batches))
                states[-1].append(batches.get_state())
    joined = [
        {name: np.concatenate([batch[name] for batch in step]) for name in step[0]} for step in zip(*parts, strict=True)
    ]
    return joined, [list(step) for step in zip(*states, strict=True)]
