"""TakenSource: rows of a dataset of Lance, which finds rows by their numbers."""

from functools import cached_property
from typing import Any, final

import numpy as np

from loadax.protocols import Integers, Tree
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.tables.arrow.table import open_arrow


@final
class TakenSource(BaseSource):
    """Rows of a `LanceDataset`: a read of rows is one `take`.

    Args:
        data: The dataset, of the version that is open.
    """

    def __init__(self, data: Any):
        self._data = data
        self._length = int(data.count_rows())
        self.traits = Traits(owns_memory=True, concurrent_reads=4)

    def __repr__(self) -> str:
        return "Lance rows"

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> Any:
        return _opened, (self._data.uri, self._data.version)

    @cached_property
    def spec(self) -> Tree | None:
        return open_arrow(self._data.head(1)).spec

    def read(self, rows: Integers) -> Tree:
        rows = check_rows(rows, self._length)
        table = open_arrow(self._data.take(rows.tolist()))
        return table.read(np.arange(len(rows)))


def _opened(uri: str, version: int) -> TakenSource:
    import lance

    return TakenSource(lance.dataset(uri, version=version))
