"""Rank and size of this process in a JAX run, read without importing JAX."""

import sys
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Process:
    """One of `count` processes that run the same program, numbered from 0."""

    index: int
    count: int


def this_process() -> Process:
    """This process in a `jax.distributed` run; process 0 of 1 outside of one."""
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)
    if jax is None or distributed is None or not distributed.is_initialized():
        return Process(0, 1)
    return Process(int(jax.process_index()), int(jax.process_count()))
