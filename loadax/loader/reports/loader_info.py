"""LoaderInfo: what a report has to know of the loader, so that it gives advice that can help."""

import math
from dataclasses import dataclass
from typing import final

from jax.sharding import Mesh

from loadax.core.formatting import short_name
from loadax.loader.batch_spec import BatchSpec
from loadax.reader import Reader

_NARROW = 2  # bytes of an element
_MOST_OF_IT = 0.5


@final
@dataclass(frozen=True)
class LoaderInfo:
    """How a loader is made.

    Args:
        maps: the names of the user's functions.
        python_source: rows are read by Python code of the user's, which may hold the interpreter.
        wide: what is copied to the devices is for the most part of dtypes that could be narrower.
    """

    maps: tuple[str, ...] = ()
    python_source: bool = False
    wide: bool = False


def loader_info(reader: Reader, batch: BatchSpec, mesh: Mesh, cached: bool) -> LoaderInfo:
    """How a loader is made that reads so and places such batches on a mesh; `cached`: all rows are on the devices."""
    copied = not cached and any(device.platform != "cpu" for device in mesh.local_devices)
    maps = tuple(short_name(each.function) for each in reader.maps)
    return LoaderInfo(maps, reader.source.runs_python, copied and wide(batch))


def wide(batch: BatchSpec) -> bool:
    """Whether most of a batch's bytes are in elements of more than two."""
    each = [(leaf.dtype.itemsize, leaf.dtype.itemsize * math.prod(leaf.spec.shape)) for leaf in batch.leaves]
    return sum(size for item, size in each if item > _NARROW) > _MOST_OF_IT * sum(size for _, size in each)
