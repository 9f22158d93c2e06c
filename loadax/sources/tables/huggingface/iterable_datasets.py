"""Opens streamed Hugging Face datasets (`IterableDataset`): a bounded number of lanes, each of some of the shards."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, final

from loadax.core.arguments import integer
from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import ArgumentError
from loadax.protocols import Tree
from loadax.sources.stream.lane import OpenLane, rows_are_batches
from loadax.sources.stream.source import Origin, StreamSource
from loadax.sources.tables.arrow.call import column_names
from loadax.sources.tables.huggingface.iterable_verbs import (
    has_batches,
    has_exact_states,
    verb_of_whole,
    verb_without_state,
)
from loadax.sources.tables.huggingface.stream_rows import StreamRowReader

# of a stream whose number of lanes is not given: each has files open
_MOST_LANES = 16


def open_huggingface_stream(
    data: Any, columns: Sequence[str] | str | None = None, lanes: int | None = None
) -> StreamSource:
    """The stream of a streamed dataset.

    Args:
        data: `datasets.IterableDataset`.
        columns: Names of the columns to read; None: all.
        lanes: Number of lanes; None: chosen by the number of shards, see `lanes_of`.

    Raises:
        ArgumentError: If its rows are batches, there are more lanes than shards, or a column is not there; says what
            to write.
    """
    if has_batches(data):
        raise rows_are_batches(".batch(…)")
    shards = data.num_shards
    whole = verb_of_whole(data)
    if lanes is None:
        if whole:
            lanes = 1
        else:
            lanes = lanes_of(shards)
    elif integer("lanes", lanes, 1) > shards:
        raise ArgumentError(
            f"lanes={lanes}: the stream has {count_text(shards, 'shard')}, one or "
            f"more a lane; pass {shards} or fewer"
        )
    if columns is not None:
        given = [columns] if isinstance(columns, str) else columns
        data = data.select_columns(column_names(given, data.column_names or given))
    if whole and lanes > 1:
        if whole.startswith("interleave"):
            mixed = "; to mix streams, pass them to loadax.mix"
        else:
            mixed = ""
        log.warning(
            "loadax: lanes=%d: each lane does %s by itself, so rows differ from "
            "those of the stream; leave lanes= out to read these%s",
            lanes,
            whole,
            mixed,
        )
    why = _without_state(data)
    origin = Origin(
        "a Hugging Face IterableDataset",
        "loadax.from_huggingface(data, lanes=…)",
        why,
    )
    return StreamSource(_opener(data, not why), lanes, None, origin)


def lanes_of(shards: int) -> int:
    """The number of lanes for a number of shards, at most 16: such that lanes have equally many shards, or almost.

    A lane with fewer shards than others ends before them.
    """
    if shards <= _MOST_LANES:
        return max(1, shards)
    return min(
        range(_MOST_LANES, _MOST_LANES // 2 - 1, -1), key=lambda lanes: shards % lanes
    )


def _without_state(data: Any) -> str:
    """Why states of the stream would not go on exactly; empty: they do."""
    version = sys.modules["datasets"].__version__
    if not has_exact_states(version):
        return (
            f"datasets {version} does not go on where a state was taken, which "
            "datasets>=5.1 does"
        )
    verb = verb_without_state(data)
    if verb:
        return f"{verb} of Hugging Face has no exact state"
    return ""


def _opener(data: Any, has_states: bool) -> OpenLane:
    def open_lane(lane: int, lanes: int, epoch: int) -> Iterator[Tree]:
        # Lanes read the shards side by side in their order. A single one reads all, as a dataset that is cut in one
        # part has lost what its parts were.
        if lanes == 1:
            part = data
        else:
            part = data.shard(lanes, lane, contiguous=lanes == data.num_shards)
        # By tables of Arrow where the stream has them, which its state depends on.
        rows = part.with_format(
            "arrow" if getattr(part._ex_iterable, "iter_arrow", None) else None  # noqa: SLF001
        )
        rows.set_epoch(epoch)
        read = StreamRowReader(
            data.features, getattr(data, "_token_per_repo_id", None)
        )
        if has_states:
            return _StatefulRows(rows, read)
        return map(read, rows)

    return open_lane


@final
class _StatefulRows(Iterator[Tree]):
    """Rows of a lane, with its state. The dataset has the state, not its iterator.

    Args:
        rows: `IterableDataset` of some shards.
        read: Makes an example of each of its rows.
    """

    def __init__(self, rows: Any, read: StreamRowReader):
        self._rows = rows
        self._read = read
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Tree:
        if self._iterator is None:
            self._iterator = iter(self._rows)
        return self._read(next(self._iterator))

    def state_dict(self) -> Any:
        return self._rows.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._rows.load_state_dict(state)
