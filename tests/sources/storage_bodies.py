"""Bodies of the real processes of `test_object_storage.py`, each with its own proxy that counts what it fetches."""

import os
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import Mesh, PartitionSpec as P

import loadax
from loadax.loader.watch import record
from tests.loader.oracle import assert_placed
from tests.servers.faults import FaultProxy

LATITUDES = np.arange(64 * 8 * 512, dtype=np.float32).reshape(64, 8, 512)
# half the latitudes of a row: 8 KiB, since TensorStore joins ranges that lie within 4 KiB of each other
_CHUNK = (1, 4, 512)
_SHARD = (16, 8, 512)
_INDEX = 16 * 2 * 16 + 4  # bytes: offset and size of each chunk of a shard, and a checksum


def write_latitudes(folder: Path) -> None:
    """An array whose chunks cut its rows in two."""
    codecs = [{"name": "bytes"}, {"name": "crc32c"}]
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": _SHARD}},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": _CHUNK, "codecs": codecs}}],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}, "metadata": metadata}
    ts.open(spec, create=True, dtype=ts.float32, shape=LATITUDES.shape).result().write(LATITUDES).result()


@patch.object(record, "sampled_rows", lambda *_: [])  # read for the comparison of hosts
def only_its_latitudes(server: str, url: str, environment: dict[str, str]) -> None:
    """A host that holds half the latitudes of all rows fetches only these and the shards' indexes, each once."""
    count = jax.process_count()
    mesh = Mesh(np.array(jax.devices()).reshape(count, -1).T, ("data", "latitude"))
    with closing(FaultProxy(server)) as proxy:
        os.environ.update(environment, AWS_ENDPOINT_URL=proxy.url)
        data = loadax.from_zarr(url.format(proxy=proxy.url)).shuffle(seed=0)
        loader = loadax.Dataloader(data, 16, mesh=mesh, partition=P("data", "latitude"))
        proxy.clear()
        for step, batch in enumerate(loader):
            assert_placed(batch, LATITUDES[loader.rows(step)], mesh)
        assert step + 1 == 4
        fetched = sum(sent for path, sent in proxy.bytes_sent.items() if "/c/" in path)
    checksums = 64 * 4
    assert fetched == LATITUDES.nbytes // count + checksums + 4 * _INDEX, f"{fetched} of {LATITUDES.nbytes} bytes"
