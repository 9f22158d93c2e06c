"""Measures read amplification of a block shuffle: bytes that each host reads per byte it uses. Started by run.py.

Bytes are counted at the store. Hosts are simulated one after another, each with its own open store, so that they don't
share caches. Prints JSON.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from workloads import find
from workloads.stores import Stored

import loadax

_HOSTS = (1, 2, 4)
_EPOCHS = 2


def main() -> None:
    """Read amplification of each host, by number of hosts."""
    name, path, size = sys.argv[1:]
    workload, folder = find(name, size == "quick"), Path(path)
    assert isinstance(workload, Stored)
    stored = sum(file.stat().st_size for file in folder.joinpath("store", "c").rglob("*") if file.is_file())
    results = {
        hosts: [amplification(workload, folder, stored, host, hosts) for host in range(hosts)] for hosts in _HOSTS
    }
    print(json.dumps(results))


def amplification(workload: Stored, folder: Path, stored: int, host: int, hosts: int) -> float:
    """Bytes that one host reads in whole epochs, per byte of its share of the store."""
    before = _bytes_read()
    data = loadax.from_zarr(folder / "store").shuffle(0, block="chunks", window=workload.window, lanes=workload.lanes)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    loader = loadax.Dataloader(
        data, workload.batch_size, partition=sharding, num_epochs=_EPOCHS, shard_index=host, shard_count=hosts
    )
    for batch in loader:
        jax.block_until_ready(batch)
    return (_bytes_read() - before) / (_EPOCHS * stored / hosts)


def _bytes_read() -> int:
    metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(value["value"] for metric in metrics for value in metric["values"])


if __name__ == "__main__":
    main()
