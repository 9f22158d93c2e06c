"""Lanes of datasets: the rows that they read ahead."""

from typing import Any

import numpy as np
import pytest

from loadax import from_arrays
from loadax.composition.dataset_lanes import DatasetLanes
from loadax.protocols import Visits
from loadax.reader import Reader


def reads_of(row_bytes: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows of each read of the only lane of a dataset."""
    data = from_arrays({"x": np.zeros((rows, row_bytes), np.uint8)})
    reads, examples = list[int](), Reader.examples

    def counted(reader: Reader, visits: Visits) -> Any:
        reads.append(len(visits.rows))
        return examples(reader, visits)

    monkeypatch.setattr(Reader, "examples", counted)
    lane = DatasetLanes(data.reader, data.order)(0, 1, 0)
    assert sum(1 for _ in lane) == rows == sum(reads)
    return reads


@pytest.mark.parametrize(
    ("row_bytes", "most"),
    [(8, 256), (1 << 13, 128), (1 << 15, 32), (1 << 16, 16), (3 << 16, 5), (1 << 20, 1), (1 << 21, 1)],
)
def test_read_ahead_of_a_lane_is_at_most_one_mebibyte(
    row_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = min(1600, (1 << 24) // row_bytes)  # 16 MiB
    reads = reads_of(row_bytes, rows, monkeypatch)
    assert reads[0] == 1  # so that the first row comes early
    assert max(reads) == most
