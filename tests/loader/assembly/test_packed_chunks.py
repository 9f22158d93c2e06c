"""Packed sources of chunked data cache open chunks, and `explain` reports rows decoded per row used."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import loadax
from loadax import Dataloader, Dataset
from tests.sources.chunked import ChunkedSource

ROWS = np.arange(256 * 4, dtype=np.int32).reshape(256, 4)


def one_device() -> Mesh:
    return Mesh(np.array(jax.local_devices()[:1], object), ("data",))


def served(data: Dataset, batch: int) -> list[Any]:
    loader = Dataloader(data, batch, mesh=one_device(), num_workers=0)
    with loader.iterate() as batches:
        return [np.asarray(each["tokens"]) for each in batches]


def packs_shuffled(source: ChunkedSource) -> Dataset:
    return loadax.from_source(source).pack(8).shuffle(0, block="chunks", window=2, lanes=2)


def documents_shuffled(source: ChunkedSource) -> Dataset:
    return loadax.from_source(source).shuffle(0, block="chunks", window=2, lanes=2).pack(8)


@pytest.mark.parametrize("make", [packs_shuffled, documents_shuffled])
def test_each_chunk_is_decoded_once(make: Any) -> None:
    reads: list[Any] = []
    source = ChunkedSource(ROWS, 16, before=reads.append)
    data = make(source)
    len(data)
    source.counts[...] = 0
    reads.clear()
    batches = served(data, 8)
    assert sorted(np.concatenate(batches).reshape(-1).tolist()) == ROWS.reshape(-1).tolist()
    assert source.counts.max() == 1
    # Whole chunks alone are read; past the cache it would be the documents of a batch.
    assert {int(count) for rows in reads for count in np.unique(rows // 16, return_counts=True)[1]} == {16}


def test_explain_says_what_is_decoded_for_what_is_used() -> None:
    plain = Dataloader(loadax.from_source(ChunkedSource(ROWS, 16)).pack(8), 8, mesh=one_device()).explain(2)
    assert plain.reading.decoded is not None
    assert plain.reading.decoded.median == 1.0  # 16 documents of 4 make 8 rows of 8: one chunk a batch
    with pytest.warns(UserWarning, match="chunks hold 8 rows decodes up to 8 rows for each one used"):
        shuffled = loadax.from_source(ChunkedSource(wide(), 16)).pack(2048).shuffle(0)
    loader = Dataloader(shuffled, 2, mesh=one_device())
    found = loader.explain(4).reading.decoded
    assert found is not None
    assert found.median > 3
    fitted = loadax.from_source(ChunkedSource(ROWS, 64)).pack(8, method="best_fit").shuffle(0)
    decoded = Dataloader(fitted, 2, mesh=one_device()).explain(4).reading.decoded
    assert decoded is not None
    assert decoded.median > 8  # 4 documents a batch, each of another chunk of 64 as a rule


def wide() -> Any:
    return np.zeros((256, 1024), np.int32)
