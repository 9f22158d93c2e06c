"""Maps for worker processes: in a module of their own, which imports no JAX, so that workers begin fast."""

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.limits import ENDLESS

TABLE = np.arange(1 << 15, dtype=np.int32)
"""Larger than what travels within a message."""


class UnluckyError(Exception):
    """An error of a user's."""


class TwoError(Exception):
    """Its __init__ wants other arguments than the exception keeps."""

    def __init__(self, row: int, why: str):
        super().__init__(f"row {row}: {why}")
        self.row, self.why = row, why


class ClosedError(Exception):
    """Can't be pickled."""

    def __init__(self, text: str):
        super().__init__(text)
        self.hook = sys.stdout


class MuteError(Exception):
    """Can't be shown either."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def __str__(self) -> str:
        raise ValueError("no words")


class Awaited:
    """Changes nothing; another process can take it up once a file is gone."""

    def __init__(self, file: Path):
        self.file = file

    def __call__(self, example: Any) -> Any:
        return example

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        while self.file.exists():
            time.sleep(0.01)


class Stuck:
    """Does not end; leaves a file for each process that has begun.

    Args:
        folder: for these files.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, example: Any) -> Any:
        (self.folder / str(os.getpid())).touch()
        time.sleep(ENDLESS)
        return example


def halved(example: Any) -> Any:
    return {**example, "image": example["image"] // 2}


def number_of_some(example: Any) -> int:
    return int(example["x"]) % 3


def some(example: Any) -> Any:
    return [{"x": example["x"] + number} for number in range(number_of_some(example))]


def plus_one(example: Any) -> Any:
    return {**example, "x": example["x"] + 1}


def noisy(example: Any, rng: np.random.Generator) -> Any:
    return {**example, "x": example["x"] + rng.normal(size=np.shape(example["x"]))}


def looked_up(example: Any) -> Any:
    return {**example, "x": TABLE[example["x"]]}


def pages_of_arrays(_: Any) -> Any:
    """How many pages of memory the system has handed out for some arrays of a MiB that are made again."""

    def pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.ones(1 << 20, np.int8) for _ in range(6)]
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        del arrays  # which were all there until now
        return after - before

    return {"pages": np.int32([pages() for _ in range(4)][-1])}


def environment(_: Any) -> Any:
    """Who reads this row, and what it sees."""
    hidden = [
        os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    ] == ["-1"] * 3
    return {
        "pid": np.int32(os.getpid()),
        "jax": np.bool_(any(name.split(".")[0] in ("jax", "jaxlib") for name in sys.modules)),
        "cpu": np.bool_(hidden and os.environ.get("JAX_PLATFORMS") == "cpu"),
        "deaf": np.bool_(signal.getsignal(signal.SIGINT) == signal.SIG_IGN),
        "open": np.bool_(signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }


def who(example: Any) -> Any:
    return {**example, "pid": np.int32(os.getpid())}


def slow_who(example: Any) -> Any:
    time.sleep(0.01)
    return who(example)


def _cause() -> None:
    try:
        dict[str, int]()["first"]
    except KeyError as error:
        raise RuntimeError("no good") from error


def _raise(error: BaseException) -> None:
    raise error


_WAYS: dict[str, Callable[[], Any]] = {
    "value": lambda: _raise(ValueError("no good")),
    "user": lambda: _raise(UnluckyError("no good")),
    "two": lambda: _raise(TwoError(21, "no good")),
    "closed": lambda: _raise(ClosedError("no good")),
    "mute": lambda: _raise(MuteError()),
    "cause": _cause,
    "stop": lambda: _raise(StopIteration()),
    "exit": lambda: sys.exit(3),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "_exit": lambda: os._exit(7),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
}


def raises(way: str) -> Any:
    """A map that fails at row 21, in its way; all others are good."""

    def fails(example: Any) -> Any:
        if example["x"] == 21:
            _WAYS[way]()
        return example

    return fails


class Numbers:
    """A user's own source, as the protocol wants it."""

    def __init__(self, count: int):
        self.count = count
        self.spec = {"x": np.int64(0)}

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Any) -> Any:
        return {"x": rows * 3}


class Items:
    """A user's own indexable object."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return {"x": np.int32(row * 5), "y": np.full(3, row, np.float32)}


class Unwilling(Numbers):
    """Has a lock, and does not pickle."""

    def __init__(self, count: int):
        super().__init__(count)
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Unwilling({self.count})"


class Spoilt(Numbers):
    """Pickles, but does not come back."""

    def __reduce__(self) -> Any:
        return spoil, ()


def spoil() -> Any:
    raise LookupError("not here")
