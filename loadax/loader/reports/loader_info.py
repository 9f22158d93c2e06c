"""LoaderInfo: properties of a loader that the advice of a report depends on."""

import math
from dataclasses import dataclass
from typing import final

from jax.sharding import Mesh

from loadax.core.formatting import short_name
from loadax.loader.batch_spec import BatchSpec
from loadax.reader import Reader

_NARROW = 2  # bytes per element
_MOST_OF_IT = 0.5


@final
@dataclass(frozen=True)
class LoaderInfo:
    """Properties of a loader.

    Args:
        maps: Names of the user's functions.
        python_source: Whether the user's Python code reads rows, which may hold the GIL.
        wide: Whether most bytes that are copied to the devices have dtypes that could be narrower.
    """

    maps: tuple[str, ...] = ()
    python_source: bool = False
    wide: bool = False


def loader_info(reader: Reader, batch: BatchSpec, mesh: Mesh | None, cached: bool) -> LoaderInfo:
    """The properties of a loader; `cached`: all rows are in device memory; `mesh` None: batches are not placed."""
    copied = not cached and mesh is not None and any(device.platform != "cpu" for device in mesh.local_devices)
    maps = tuple(short_name(row_map.function) for row_map in reader.maps)
    return LoaderInfo(maps, reader.source.traits.runs_python, copied and wide(batch))


def wide(batch: BatchSpec) -> bool:
    """Whether most bytes of a batch are in elements of more than two bytes."""
    sizes = [(leaf.dtype.itemsize, leaf.dtype.itemsize * math.prod(leaf.spec.shape)) for leaf in batch.leaves]
    return sum(size for item, size in sizes if item > _NARROW) > _MOST_OF_IT * sum(size for _, size in sizes)
