"""Properties of a loader that advice depends on: Python code, copies to devices, names of functions."""

from typing import Any

import jax
import numpy as np
import pytest

from loadax import Dataloader, Dataset, concat, from_arrays, from_source
from loadax.core.tree import flatten
from loadax.loader.batch_spec import BatchLeaf, BatchSpec
from loadax.loader.reports.bottleneck import LoaderInfo, loader_info, wide
from loadax.protocols import ArraySpec
from tests.loader.oracle import ReadSource


def same(example: Any) -> Any:
    return example


arrays = from_arrays(np.zeros((100, 4), np.float32))
lists = from_source([np.zeros(4, np.float32)] * 100)

IN_PYTHON: dict[str, tuple[Dataset, bool]] = {
    "arrays": (arrays, False),
    "a list": (lists, True),
    "a source of the user's": (from_source(ReadSource({"x": np.zeros(100)})), True),
    "parts in memory": (concat([arrays, arrays]), False),
    "one part of several": (concat([arrays, lists]), True),
    "maps of a part": (concat([arrays, arrays.map(same)]), True),
    "windows of arrays": (arrays.windows(3), False),
    "windows of a list": (lists.windows(3), True),
    "packed documents": (from_source([np.arange(3), np.arange(2)]).pack(4), True),
}


@pytest.mark.parametrize("case", IN_PYTHON)
def test_whose_code_reads(case: str) -> None:
    dataset, ours = IN_PYTHON[case]
    assert dataset.reader.source.traits.runs_python == ours


@pytest.mark.parametrize(
    ("leaves", "found"),
    [
        ({"x": "uint8"}, False),
        ({"x": "uint16"}, False),
        ({"x": "float32"}, True),
        ({"tokens": "int32", "image": "uint8"}, True),
        ({"image": "uint8", "other": "uint16", "third": "uint16", "label": "int32"}, False),
    ],
)
def test_what_could_be_narrower(leaves: dict[str, str], found: bool) -> None:
    _, structure = flatten(dict.fromkeys(leaves, 0))
    each = [BatchLeaf(name, 0, ArraySpec((3,), np.dtype(kind)), np.dtype(kind)) for name, kind in leaves.items()]
    assert wide(BatchSpec(structure, tuple(each))) == found


def test_nothing_is_narrower_for_devices_that_are_this_machine_s_cores() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    loader = Dataloader(arrays.map(same), 8, mesh=mesh)
    _, structure = flatten(0)
    batch = BatchSpec(structure, (BatchLeaf("", 0, ArraySpec((4,), np.dtype(np.float32)), np.dtype(np.float32)),))
    assert wide(batch)
    assert loader_info(loader.dataset.reader, batch, mesh, cached=False) == LoaderInfo(("same",))
