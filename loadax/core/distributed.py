"""Rank and size of this process in a JAX run, and what its processes talk through, read without importing JAX."""

import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, final

# of private JAX, which a newer version may move
_client = attrgetter("_src.distributed.global_state.client")
_KEY_VALUE_METHODS = ("key_value_delete", "key_value_dir_get", "key_value_set")


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


def coordination_client() -> Any | None:
    """The client of the coordination service that `jax.distributed.initialize` started, for its key-value store.

    Returns:
        None outside of a `jax.distributed` run, or if this JAX version has changed the private API.

    Examples:
        >>> from loadax.core.distributed import coordination_client
        >>> coordination_client() is None
        True
    """
    try:
        client = _client(sys.modules.get("jax"))
    except AttributeError:
        return None
    if all(hasattr(client, name) for name in _KEY_VALUE_METHODS):
        return client
    return None
