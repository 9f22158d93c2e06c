"""The contestants of each workload, and their modules.

A contestant is `prepare(workload, folder, sharding, **options) -> open`; `open()` returns an endless iterator over
batches on the devices, in a new order each epoch. `prepare` runs once per process; the time to the first batch includes
`open`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from jax.sharding import NamedSharding
from workloads.base import Workload


@final
@dataclass(frozen=True)
class Contestant:
    """Location of a contestant's code.

    Args:
        module: Module in this folder.
        form: Name of the function that prepares it.
        needs: Package that it requires.
        options: Keyword arguments of the function.
        feeds: Whether it feeds batches, or is only a reference.
    """

    module: str
    form: str
    needs: str = "loadax"
    options: dict[str, Any] = field(default_factory=dict)
    feeds: bool = True

    def prepare(self, workload: Workload, folder: Path, sharding: NamedSharding) -> Callable[..., Iterator[Any]]:
        """Prepares the contestant; returns the function that opens its iterators."""
        form: Callable[..., Callable[..., Iterator[Any]]] = getattr(import_module(self.module), self.form)
        return form(workload, folder, sharding, **self.options)


def grain(form: str, **options: Any) -> Contestant:
    """Grain in one of its forms."""
    return Contestant("peers.grain_forms", form, "grain", options)


def torch(form: str, workers: int, **options: Any) -> Contestant:
    """Torch's `DataLoader` with `workers` processes."""
    return Contestant("peers.torch_forms", form, "torch", {"workers": workers, **options})


def tensorflow(form: str) -> Contestant:
    """TensorFlow's `tf.data`."""
    return Contestant("peers.tensorflow_forms", form, "tensorflow")


def spdl(form: str) -> Contestant:
    """SPDL."""
    return Contestant("peers.spdl_forms", form, "spdl")


LOADAX = Contestant("ours", "defaults")
TWO_PROCESSES = Contestant("ours", "defaults", options={"worker_type": "process", "num_workers": 2})
NUMPY = Contestant("ours", "numpy_loop")
JAX_DATALOADER = Contestant("peers.jax_dataloader_forms", "batches", "jax_dataloader")

_BATCHES = {
    "loadax": LOADAX,
    "numpy": NUMPY,
    "grain-inline": grain("rows", threads=0),
    "grain-threads": grain("rows"),
    "grain-dataloader": grain("dataloader"),
    "grain-batches": grain("batches", threads=1, ahead=4),
    "grain-batches-inline": grain("batches", threads=0),
    "grain-batches-ahead": grain("placed_ahead"),
    "grain-batches-2": grain("batches", threads=0, workers=2),
    "torch-0": torch("rows", 0),
    "torch-2": torch("rows", 2),
    "torch-batches": torch("batches", 0),
    "torch-batches-2": torch("batches", 2),
    "jax-dataloader": JAX_DATALOADER,
}

_ROWS = {
    "loadax": LOADAX,
    "loadax-0": Contestant("ours", "defaults", options={"num_workers": 0}),
    "loadax-2": TWO_PROCESSES,
    "numpy": NUMPY,
    "grain-inline": grain("rows", threads=0),
    "grain-threads": grain("rows"),
    "grain-2": grain("rows", threads=0, workers=2),
    "torch-0": torch("rows", 0),
    "torch-0-numpy": torch("rows", 0, collate="numpy"),
    "torch-2": torch("rows", 2),
    "torch-2-numpy": torch("rows", 2, collate="numpy"),
    "spdl": spdl("rows"),
}

_PYTHON = {
    "loadax": TWO_PROCESSES,
    "loadax-threads": LOADAX,
    "ceiling": Contestant("ceiling", "two_processes", feeds=False),
    "numpy": NUMPY,
    "grain-2": grain("rows", threads=0, workers=2),
    "grain-dataloader-2": grain("dataloader", workers=2),
    "grain-batches-2": grain("batches", threads=0, workers=2),
    "torch-2": torch("rows", 2),
    "torch-batches-2": torch("batches", 2),
    "jax-dataloader": JAX_DATALOADER,
    "tf.data": tensorflow("batches"),
    "spdl-2": spdl("processes"),
}

CONTESTANTS: dict[str, dict[str, Contestant]] = {
    "tokens": {**_BATCHES, "tf.data": tensorflow("batches"), "spdl": spdl("batches")},
    "images": {**_BATCHES, "tf.data": tensorflow("gathered"), "spdl": spdl("batches")},
    "rows": _ROWS,
    "row-map": _ROWS,
    "transform": _PYTHON,
    "transform-wide": _PYTHON,
    "jpegs": {
        "loadax": LOADAX,
        "loadax-fast": Contestant("ours", "fast"),
        "loadax-pillow": Contestant("ours", "own_function"),
        "pillow": NUMPY,
        "grain-threads": grain("rows"),
        "grain-threads-2": grain("rows", threads=2, ahead=64),
        "grain-2": grain("rows", threads=0, workers=2),
        "torch-0": torch("rows", 0),
        "torch-2": torch("rows", 2),
        "tf.data": tensorflow("jpegs"),
        "spdl": spdl("rows"),
    },
    "records": {
        "loadax": LOADAX,
        "numpy": NUMPY,
        "grain-inline": grain("rows", threads=0),
        "grain-threads": grain("rows"),
        "grain-2": grain("rows", threads=0, workers=2),
        "grain-batches": grain("batches", threads=1, ahead=4),
        "grain-batches-2": grain("batches", threads=0, workers=2),
        "torch-batches": torch("batches", 0),
        "torch-batches-2": torch("batches", 2),
        "jax-dataloader": JAX_DATALOADER,
        "tf.data": tensorflow("batches"),
        "spdl": spdl("batches"),
    },
    "fields": {"loadax": LOADAX, "tensorstore": Contestant("ours", "tensorstore_loop")},
    "chunks": {"loadax": Contestant("ours", "chunks"), "row-shuffle": LOADAX},
    "raw-fields": {"loadax": LOADAX, "numpy": NUMPY},
    "raw-tokens": {"loadax": LOADAX, "numpy": NUMPY},
    "raw-tokens-small": {"loadax": LOADAX, "numpy": NUMPY},
    "windows": {"loadax": LOADAX, "numpy": NUMPY},
}


def missing(contestants: dict[str, Contestant]) -> dict[str, str]:
    """Contestants whose package is not installed, and the package."""
    return {name: contestant.needs for name, contestant in contestants.items() if find_spec(contestant.needs) is None}
