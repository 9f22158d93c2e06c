"""`loadax inspect` of tables: columns, rows, row groups, and the cost of shuffling them."""

from collections.abc import Iterator

import numpy as np

from loadax.core.formatting import count_text, table
from loadax.core.spec import flatten_spec
from loadax.dataset import Dataset
from loadax.redaction import redact
from loadax.sources.checks import chunk_starts

_HEADER = ("leaf", "shape", "dtype")


def table_lines(path: str, function: str, dataset: Dataset) -> Iterator[str]:
    """Text about a table that was opened by a function of loadax.

    Args:
        path: Path or URL of its files.
        function: Name of the function.
        dataset: What it returned.
    """
    source, opened = dataset.source, f"loadax.{function}({redact(path)!r})"
    yield f"{redact(path)}: {count_text(len(dataset), 'row')} in {count_text(len(source.addresses), 'file')}\n\n"
    specs, structure = flatten_spec(dataset.spec)
    ragged = source.spec is None
    yield table(
        _HEADER,
        [
            (leaf, " x ".join(map(str, spec.shape)) or "a single value", str(spec.dtype))
            for leaf, spec in zip(structure.paths, specs, strict=True)
        ],
    )
    yield f"{redact(repr(source))}\n"
    if ragged:
        yield "shapes and dtypes are those of row 0: lists may have any length\n"
    starts = chunk_starts(source)
    if starts is None:
        yield f"\n{opened}.shuffle(seed)\n"
        return
    sizes = np.diff(np.asarray(starts), append=len(source))
    yield f"\n{count_text(len(starts), 'row group')} of {sizes.min():,} to {sizes.max():,} rows, each decoded whole\n"
    if source.kept_chunks >= len(starts):
        yield f"  .shuffle(seed): all row groups fit in memory_bytes, each is decoded once\n  {opened}.shuffle(seed)\n"
    else:
        yield f"  .shuffle(seed): {source.kept_chunks} row groups fit in memory_bytes, others are decoded again\n"
        yield f'  .shuffle(seed, block="chunks"): decodes each once\n  {opened}.shuffle(seed, block="chunks")\n'
