"""Counts the bytes that each host reads per step."""

import math

import numpy as np

from loadax.core.spec import flatten_spec
from loadax.dataset import Dataset
from loadax.loader.inspection.all_hosts import AllHosts
from loadax.protocols import Integers


def bytes_read(dataset: Dataset, hosts: AllHosts) -> tuple[Integers, int]:
    """int64[hosts]: bytes that each host reads per step; and bytes of the whole batch."""
    specs = flatten_spec(dataset.reader.specs[0])[0]
    whole_row = sum(spec.nbytes for spec in specs)
    whole = whole_row * hosts.batch_size
    if not dataset.reader.maps_columns:
        return hosts.rows.counts * whole_row, whole
    read = np.zeros(len(hosts.processes), np.int64)
    origins = dataset.reader.origins
    for leaf, holdings in zip(hosts.one.batch.leaves, hosts.leaves, strict=True):
        if leaf.source is not None:
            read += (
                holdings.counts
                * math.prod(holdings.extents)
                * specs[origins[leaf.source]].dtype.itemsize
            )
    for leaf in hosts.one.host.leaves:
        read += hosts.rows.counts * leaf.spec.nbytes
    return read, whole
