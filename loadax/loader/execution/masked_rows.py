"""MaskedRows: counts, records and limits the rows that a run masks."""

import threading
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from loadax.core.formatting import count_text
from loadax.core.log import log
from loadax.errors import SourceError
from loadax.loader.mask_errors import MaskErrors, append_record
from loadax.loader.metrics.stats import Failure
from loadax.loader.trace import trace
from loadax.plan.steps import Steps
from loadax.sources.base import BaseSource

_ALWAYS = 10  # rows that may fail whatever their share is


@final
class MaskedRows:
    """The masked rows of one run in this process. Thread-safe.

    Args:
        masking: Limits and record.
        plan: Plan of the run.
        source: Source of the rows.
    """

    def __init__(self, masking: MaskErrors, plan: Steps, source: BaseSource):
        self._masking = masking
        self._plan = plan
        self._source = source
        self._lock = threading.Lock()
        self._read = self._in_a_row = 0
        # Steps and positions, each with the error that it ended the run with. After an error, the steps of a group are
        # read again one by one: those before the last row succeed, and it fails again.
        self._noted: dict[tuple[int, int], str | None] = {}

    def count(
        self,
        rows: int,
        failures: Sequence[Failure],
        place: Callable[[int], tuple[int, int]],
    ) -> None:
        """Counts a piece of which some rows could not be read.

        Args:
            rows: Rows of the piece.
            failures: Failures in it, ascending.
            place: Function of a row of the piece: its step, and its position in the batch.

        Raises:
            SourceError: If there are more than the limits allow.
        """
        with self._lock:
            self._read += rows
            end = 0  # of the failures that touch the piece's start, or each other
            for failure in failures:
                if failure.row != end:
                    self._in_a_row = 1
                else:
                    self._in_a_row = self._in_a_row + 1
                end = failure.row + 1
                where = place(failure.row)
                if where not in self._noted:
                    self._noted[where] = self._note(failure, *where)
                if (over := self._noted[where]) is not None:
                    raise SourceError(over)
            if end != rows:
                self._in_a_row = 0

    def _note(self, failure: Failure, step: int, position: int) -> str | None:
        """Logs and records a failure. Returns what to raise if there are now more than the limits allow."""
        masking = self._masking
        record = trace(self._plan, self._source, step, np.array([position]))[position]
        row = f"row {record.id}" + (
            f" (row {record.row} of {record.dataset})" if record.dataset else ""
        )
        log.warning("step %d: %s is masked: %s", step, row, failure.error)
        if masking.record is not None:
            known = {
                "id": record.id,
                "rows": len(self._source),
                "step": step,
                **record.to_dict(),
            }
            append_record(masking.record, {**known, "error": failure.error})
        if self._in_a_row > masking.max_in_a_row:
            failed = f"{count_text(self._in_a_row, 'row')} in a row"
            limit = f"max_in_a_row={masking.max_in_a_row}"
        elif (noted := len(self._noted) + 1) > max(
            _ALWAYS, masking.max_share * self._read
        ):
            failed = f"{noted} of {count_text(self._read, 'row')}"
            limit = f"max_share={masking.max_share}"
        else:
            return None
        return (
            f"{failed} can't be read, more than {limit} of on_error; the last is "
            f"{row}: {failure.error}; repair the data, or pass a larger "
            f"{limit.partition('=')[0]}"
        )
