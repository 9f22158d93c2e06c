"""Files of saved states: what Orbax's `StatefulCheckpointable` protocol asks for, without importing Orbax."""

import json
from pathlib import Path
from typing import Any, Protocol

import jax

from loadax.core.arguments import shown
from loadax.errors import StateError

FILE = "loadax.json"
"""Name of the file in the folder that Orbax gives to the iterator."""


class FutureFolder(Protocol):
    """A folder that is created in the background: Orbax's `PathAwaitingCreation`."""

    async def await_creation(self) -> Path:
        """Waits until the folder exists."""


async def write_state(state: dict[str, Any], folder: FutureFolder) -> None:
    """Writes a state to a folder, once it exists. Only process 0 writes, since the state is equal on all hosts."""
    created = await folder.await_creation()
    if jax.process_index() == 0:
        (created / FILE).write_text(json.dumps(state))


def read_state(folder: Path) -> Any:
    """Reads the state in a folder.

    Raises:
        StateError: If there is none.
    """
    path = folder / FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise StateError(
            f"{path} does not exist: this checkpoint was not saved from a loader's iterator; leave the iterator out of "
            "what is loaded, and start it at the step of the checkpoint: loader.iterate(start=step)"
        ) from None
    try:
        return json.loads(text)
    except ValueError:
        raise StateError(
            f"{path} holds {shown(text)}, which is not JSON; load another checkpoint, or start the iterator at the "
            "step of this one: loader.iterate(start=step)"
        ) from None


async def loaded() -> None:
    """Nothing is left to load in the background."""
