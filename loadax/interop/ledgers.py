"""Where exporters of metrics find the counters of a run, without keeping its iterator alive."""

from collections.abc import Callable
from typing import Any

from loadax.core.arguments import shown
from loadax.errors import ArgumentError
from loadax.loader.dataloader import Dataloader
from loadax.loader.stretch import Ledger


def ledger_finder(batches: Any) -> Callable[[], Ledger | None]:
    """Function that returns the counters of an iterator, or of the latest one of a loader; None if there is none.

    Raises:
        ArgumentError: If `batches` has no counters.
    """
    if isinstance(batches, Dataloader):
        return lambda: batches.ledger
    ledger = getattr(batches, "ledger", None)
    if ledger is None:
        raise ArgumentError(
            f"batches={shown(batches)}: pass a Dataloader, or an iterator of one: "
            "loader.iterate()"
        )
    return lambda: ledger
