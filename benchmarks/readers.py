"""The contestants of storage.py, made as those in contestants.py; by workload, since each is read by hand in another way."""

import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from contestants import Open, Prepare, numpy_loop
from jax.sharding import NamedSharding
from stores import SEQ_LEN, Stored

_IN_FLIGHT = 4  # reads, of the loop by hand


def loadax_rows(workload: Stored, folder: Path, sharding: NamedSharding) -> Open:
    """Loadax: every row shuffled by itself."""
    import loadax

    data = (
        loadax.from_tokens(folder / "tokens.bin", SEQ_LEN, dtype=np.uint16)
        if workload.name == "tokens"
        else loadax.from_zarr(folder / "store")
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "shuffle.* of data whose chunks hold", UserWarning)  # which is what is measured
        return _loadax(data.shuffle(0), workload, sharding)


def loadax_chunks(workload: Stored, folder: Path, sharding: NamedSharding) -> Open:
    """Loadax: chunks shuffled, and the rows of those that are open."""
    import loadax

    data = loadax.from_zarr(folder / "store").shuffle(0, block="chunks", window=workload.window, lanes=workload.lanes)
    return _loadax(data, workload, sharding)


def tensorstore_loop(workload: Stored, folder: Path, sharding: NamedSharding) -> Open:
    """The loop that one writes by hand: a whole batch a read, four under way, and shard indexes cached for good."""
    import tensorstore as ts

    context = ts.Context({"cache_pool": {"total_bytes_limit": 64 << 20}})
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/store/"}, "recheck_cached_data": False}
    store = ts.open(spec, read=True, context=context).result()

    def order() -> Iterator[Any]:
        random = np.random.default_rng(0)
        while True:
            yield from random.permutation(workload.rows).reshape(-1, workload.batch_size)

    def batches() -> Iterator[Any]:
        under_way: deque[Any] = deque()
        for rows in order():
            under_way.append(store[rows].read())
            if len(under_way) > _IN_FLIGHT:
                yield jax.device_put(under_way.popleft().result(), sharding)

    return batches


READERS: dict[str, dict[str, Prepare]] = {
    "fields": {"loadax": loadax_rows, "tensorstore": tensorstore_loop},
    "chunks": {"loadax": loadax_chunks, "row-shuffle": loadax_rows},
    "raw-fields": {"loadax": loadax_rows, "numpy": numpy_loop},
    "raw-tokens": {"loadax": loadax_rows, "numpy": numpy_loop},
    "raw-tokens-small": {"loadax": loadax_rows, "numpy": numpy_loop},
    "tokens": {"loadax": loadax_rows, "numpy": numpy_loop},
}


def _loadax(data: Any, workload: Stored, sharding: NamedSharding) -> Open:
    import loadax

    loader = loadax.Dataloader(data, batch_size=workload.batch_size, partition=sharding, num_epochs=None)
    return lambda: iter(loader)
