"""What the real processes of `test_key_value_processes.py` do."""

import jax

from loadax.sharding.key_value import key_value_store
from tests.key_values import check_store
from tests.limits import HANG


def shared() -> None:
    """Each process sees what the others set; those that wait for a key have it when it is set."""
    store = key_value_store()
    assert store is not None
    if jax.process_index() == 0:
        check_store(store)
    store.set(f"hosts/{jax.process_index()}", f"process {jax.process_index()}")
    expected = {str(process): f"process {process}" for process in range(jax.process_count())}
    assert {process: store.get(f"hosts/{process}", HANG) for process in expected} == expected
    assert store.list("hosts") == expected
