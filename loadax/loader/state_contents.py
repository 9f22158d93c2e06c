"""StateContents: what saved states have of the contents of the data; see `loadax.loader.receipts.contents`."""

from collections.abc import Mapping
from typing import Any, Protocol


class StateContents(Protocol):
    """What states have of the contents of the data, beside the order."""

    def fields(self) -> dict[str, Any]:
        """Fields of a state."""

    def prepare(self) -> None:
        """Reads what the fields need, before the first batch."""

    def check(self, state: Mapping[str, Any]) -> None:
        """Compares the data with the fields of a state; warns, or raises `StateError`."""
