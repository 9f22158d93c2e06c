"""Sources that keep the contract of sources, or break one part of it.

Fresh processes import this module, so it imports no more than it needs.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import ArraySpec
from tests.limits import ENDLESS

Array = NDArray[Any]
TREE = {"x": np.arange(120, dtype=np.float32).reshape(40, 3), "y": np.arange(40, dtype=np.int32) + 7}
SPEC = {"x": ArraySpec((3,), np.dtype(np.float32)), "y": ArraySpec((), np.dtype(np.int32))}


def take(rows: Array) -> dict[str, Array]:
    if len(rows) and not (rows.min() >= 0 and rows.max() < 40):
        raise IndexError("no such row")
    return {name: leaf[rows] for name, leaf in TREE.items()}


def put(rows: Array, boxes: Any, out: Any) -> None:
    for leaf, box, destination in zip(take(rows).values(), boxes, out, strict=True):
        if box is not None:
            destination[...] = leaf[(slice(None), *(slice(*column) for column in box))]


def forty() -> int:
    return 40


@dataclass
class Parts:
    """A source made of parts, each of which a test can replace by a broken one."""

    read: Callable[[Array], Any] = take
    read_into: Callable[..., None] | None = None
    spec: Any = field(default_factory=lambda: SPEC)
    size: Callable[[], Any] = forty
    owns_memory: bool = False
    chunks: Any = None
    concurrent_reads: Any = 1

    def __len__(self) -> int:
        return self.size()


@dataclass
class Elsewhere:
    """Does `what` in every process but the one that made it."""

    what: str
    home: int = field(default_factory=os.getpid)
    spec: Any = field(default_factory=lambda: SPEC)

    def __len__(self) -> int:
        return 40

    def read(self, rows: Array) -> Any:
        batch = take(rows)
        if os.getpid() != self.home:
            BEHAVIOURS[self.what](batch)
        return batch

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["what"] == "not opened":
            raise FileNotFoundError("no such file: /nowhere")
        self.__dict__.update(state)


def _other(batch: Any) -> None:
    batch["y"][-1] += 1


def _wide(batch: Any) -> None:
    batch["y"] = batch["y"].astype(np.int64)


LEFT_BEHIND = "a process that a source started"


def _child(batch: Any) -> None:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({ENDLESS})  # {LEFT_BEHIND}"])
    time.sleep(ENDLESS)


BEHAVIOURS: dict[str, Callable[[Any], Any]] = {
    "print": lambda batch: os.write(1, b"null, I say\n"),
    "other": _other,
    "wide": _wide,
    "die": lambda batch: os._exit(3),
    "hang with a child": _child,
}
