"""Files of saved states: what Orbax's `StatefulCheckpointable` protocol asks for, without importing Orbax."""

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from loadax.core.arguments import shown
from loadax.errors import ArgumentError, StateError
from loadax.loader.streams.run import KEY

# Name of the file in the folder that Orbax gives to the iterator.
FILE = "loadax.json"

# states of the lanes of streams that a process has opened
_LANES_FILE = "loadax.lanes.{}.json"


@runtime_checkable
class FutureFolder(Protocol):
    """A folder that is created in the background: Orbax's `PathAwaitingCreation`."""

    async def await_creation(self) -> Path:
        """Waits until the folder exists."""


async def write_state(state: dict[str, Any], folder: FutureFolder) -> None:
    """Writes a state to a folder, once it exists.

    Only process 0 writes, since the state is equal on all hosts, except for the lanes of streams.
    """
    created = await folder.await_creation()
    if KEY in state:
        lanes = {KEY: state[KEY]}
    else:
        lanes = None
    if jax.process_index() == 0:
        (created / FILE).write_text(
            json.dumps({key: value for key, value in state.items() if key != KEY})
        )
    if lanes is not None:
        (created / _LANES_FILE.format(jax.process_index())).write_text(
            json.dumps(lanes)
        )


def read_state(folder: Path) -> Any:
    """Reads the state in a folder: a state, or one for each process that saved states of lanes.

    Raises:
        StateError: If there is none.
    """
    state = _read(folder / FILE)
    lanes = sorted(folder.glob(_LANES_FILE.format("*")))
    if lanes:
        return [state | _read(path) for path in lanes]
    return state


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, ValueError):
            problem = "is not JSON"
        else:
            problem = "does not exist"
        raise StateError(
            f"{path} {problem}: this checkpoint was not saved from a loader's "
            "iterator, or is damaged; leave the iterator out of what is loaded, and "
            "start it at the step of the checkpoint: loader.iterate(start=step)"
        ) from None


def check_folder(method: str, folder: Any, wanted: type[Any]) -> None:
    """Checks that Orbax has called a method.

    Raises:
        ArgumentError: If the folder is not what it passes.
    """
    if not isinstance(folder, wanted):
        raise ArgumentError(
            f"{method}({shown(folder)}): only Orbax calls this, with a folder of its "
            "own; save a state with json.dump(it.get_state(), file), and go on from "
            "it with it.set_state(json.load(file))"
        )


async def returned(writing: Awaitable[None]) -> Awaitable[None]:
    """An awaitable that is awaited twice, as Orbax does."""
    return writing


async def loaded() -> None:
    """Nothing is left to load in the background."""
