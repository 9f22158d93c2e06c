"""`loadax inspect` of anything but zarr: rows and leaves; and of all data, the cost of shuffling it."""

import math
import warnings
from collections.abc import Iterator

import numpy as np

from loadax.cli.source import Opener
from loadax.core.formatting import count_text, size_text, table
from loadax.core.spec import flatten_spec
from loadax.dataset import Dataset
from loadax.redaction import redact
from loadax.sources.checks import chunk_starts
from loadax.sources.formats import FORMATS

_HEADER = ("leaf", "shape", "dtype")


def dataset_lines(opener: Opener) -> Iterator[str]:
    """Text about a dataset.

    Args:
        opener: The call that opens it.
    """
    dataset = opener.open()
    source, name = dataset.source, opener.path or opener.function
    is_folder = opener.path is not None and FORMATS[opener.function].is_folder
    kind = "folder" if is_folder else "file"
    files = f" in {count_text(len(source.addresses), kind)}" if source.addresses else ""
    yield f"{redact(name)}: {count_text(len(dataset), 'row')}{files}\n\n"
    specs, structure = flatten_spec(dataset.spec)
    yield table(
        _HEADER,
        [
            (leaf or "(itself)", " x ".join(map(str, spec.shape)) or "a single value", str(spec.dtype))
            for leaf, spec in zip(structure.paths, specs, strict=True)
        ],
    )
    yield f"{redact(repr(source))}\n"
    if source.spec is None or source.rows_probed or (is_folder and source.traits.reads_examples):
        yield "shapes and dtypes are those of row 0: other rows may have other shapes\n"
    yield from shuffle_lines(opener.code, dataset)


def shuffle_lines(code: str, dataset: Dataset) -> Iterator[str]:
    """Cost of reading rows in random order, and the code that reads them well, according to `Dataset.shuffle`."""
    source, starts = dataset.source, chunk_starts(dataset.source)
    yield "\ncost of shuffling\n"
    if starts is None:  # true also of memory-mapped chunks, which are not decoded
        yield f"  .shuffle(0): decodes only the rows that it returns\n  {code}.shuffle(0)\n"
        return
    sizes = np.diff(np.asarray(starts), append=len(source))
    rows = f"{sizes.min():,} to {sizes.max():,} rows" if sizes.min() < sizes.max() else count_text(int(sizes[0]), "row")
    yield f"  {count_text(len(starts), 'chunk')} of {rows}, each decoded whole\n"
    with warnings.catch_warnings(record=True) as costly:
        warnings.simplefilter("always")
        dataset.shuffle(0)
    if not costly:
        fit = source.traits.kept_chunks >= len(starts)
        why = "all chunks fit in memory, so each is decoded once" if fit else "its chunks are small, so this is cheap"
        yield f"  .shuffle(0): {why}\n  {code}.shuffle(0)\n"
        return
    shuffle = dataset.shuffle(0, block="chunks").order.shuffle
    assert shuffle is not None and shuffle.blocks is not None  # noqa: PT018
    blocks = shuffle.blocks
    open_rows = min(blocks.lanes * blocks.window * blocks.rows, len(source))
    row_bytes = sum(
        math.prod(spec.shape) * spec.dtype.itemsize
        for spec in flatten_spec(dataset.spec)[0]
        if not spec.dtype.hasobject
    )
    yield "  .shuffle(0): decodes a chunk for each row that it returns\n"
    yield f'  .shuffle(0, block="chunks"): decodes each once; keeps {count_text(open_rows, "row")} open '
    yield f"({size_text(open_rows * row_bytes)} of numbers), over all hosts\n"
    yield f"    ({blocks.lanes} lanes x {count_text(blocks.window, 'block')} of {count_text(blocks.rows, 'row')})\n"
    yield f'  {code}.shuffle(0, block="chunks")\n'
