"""`loadax inspect` of anything but zarr: rows, leaves, row groups, and the cost of shuffling them."""

from collections.abc import Iterator

import numpy as np

from loadax.cli.source import Opener
from loadax.core.formatting import count_text, table
from loadax.core.spec import flatten_spec
from loadax.dataset import Dataset
from loadax.redaction import redact
from loadax.sources.checks import chunk_starts

_HEADER = ("leaf", "shape", "dtype")


def dataset_lines(opener: Opener) -> Iterator[str]:
    """Text about a dataset.

    Args:
        opener: The call that opens it.
    """
    dataset = opener.open()
    source, name = dataset.source, opener.path or opener.function
    images = opener.function == "from_images"
    kind = "folder" if images else "file"
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
    if source.spec is None or source.rows_probed or (images and source.traits.reads_examples):
        yield "shapes and dtypes are those of row 0: other rows may have other shapes\n"
    yield from _cost(opener.code, dataset)


def _cost(code: str, dataset: Dataset) -> Iterator[str]:
    """The code that reads rows in random order, and what it decodes."""
    source = dataset.source
    starts = chunk_starts(source)
    if starts is None:
        yield f"\n{code}.shuffle(0)\n"
        return
    sizes = np.diff(np.asarray(starts), append=len(source))
    rows = f"{sizes.min():,} to {sizes.max():,} rows" if sizes.min() < sizes.max() else count_text(int(sizes[0]), "row")
    yield f"\n{count_text(len(starts), 'row group')} of {rows}, each decoded whole\n"
    if source.traits.kept_chunks >= len(starts):
        yield f"  .shuffle(0): all row groups fit in memory_bytes, each is decoded once\n  {code}.shuffle(0)\n"
    else:
        fit = f"{count_text(source.traits.kept_chunks, 'row group')} fit{'s' * (source.traits.kept_chunks == 1)}"
        yield f"  .shuffle(0): {fit} in memory_bytes, others are decoded again\n"
        yield f'  .shuffle(0, block="chunks"): decodes each once\n  {code}.shuffle(0, block="chunks")\n'
