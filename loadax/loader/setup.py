"""What a verdict on a run has to know of the loader, beside what was measured: which advice could help at all."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

from jax.sharding import Mesh

from loadax.loader.leaves import BatchSpec
from loadax.reader import Reader
from loadax.sources.array_record_rows import DecodedRecords
from loadax.sources.concatenated import ConcatenatedSource
from loadax.sources.objects import ObjectSource
from loadax.sources.packed import PackedSource

_NARROW = 2  # bytes of an element
_MOST_OF_IT = 0.5


@final
@dataclass(frozen=True)
class Setup:
    """How a loader is made.

    Args:
        maps: the names of the user's functions.
        python_source: rows are read by Python code of the user's, which may hold the interpreter.
        wide: what is copied to the devices is for the most part of dtypes that could be narrower.
    """

    maps: tuple[str, ...] = ()
    python_source: bool = False
    wide: bool = False


def setup_of(reader: Reader, batch: BatchSpec, mesh: Mesh, kept: bool) -> Setup:
    """How a loader is made that reads so, and places such batches on a mesh; `kept`: all rows are on the devices already."""
    copied = not kept and any(device.platform != "cpu" for device in mesh.local_devices)
    maps = tuple(short_name(each.function) for each in reader.maps)
    return Setup(maps, python_source(reader.source), copied and wide(batch))


def python_source(source: Any) -> bool:
    """Whether reading runs Python code of the user's: for each row, as a rule."""
    if type(source).__module__.partition(".")[0] != "loadax":
        return True
    if isinstance(source, PackedSource):
        return source.read_into is None  # then documents are read one by one
    if isinstance(source, ConcatenatedSource) and source.maps_depth > 0:
        return True
    if isinstance(source, ObjectSource | DecodedRecords):
        return True
    return any(python_source(each) for each in getattr(source, "sources", ()))


def short_name(function: Callable[..., Any]) -> str:
    """A user's function as he calls it; a lambda by where it was written."""
    while isinstance(function, partial):
        function = function.func
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"lambda ({Path(code.co_filename).name}:{code.co_firstlineno})" if name == "<lambda>" and code else name


def wide(batch: BatchSpec) -> bool:
    """Whether most of a batch's bytes are in elements of more than two."""
    each = [(leaf.dtype.itemsize, leaf.dtype.itemsize * math.prod(leaf.spec.shape)) for leaf in batch.leaves]
    return sum(size for item, size in each if item > _NARROW) > _MOST_OF_IT * sum(size for _, size in each)
