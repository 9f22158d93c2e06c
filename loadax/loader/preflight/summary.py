"""Makes the report of a preflight from what was planned and what was found."""

from collections.abc import Sequence

import numpy as np

from loadax.loader.preflight.findings import ABOVE, BELOW, NOT_FINITE, Findings
from loadax.loader.preflight.plan_rows import PlannedRun
from loadax.loader.preflight.portion import EPOCH_BITS, Portion
from loadax.loader.preflight.report import (
    FailedRow,
    LeafValues,
    Preflight,
    SlowFile,
    SlowRows,
    SourceReading,
)
from loadax.redaction import redact

_MOST_LOCATED = 10_000  # failed rows whose files are named


def report_of(planned: PlannedRun, found: Findings) -> Preflight:
    """The report of a run.

    Args:
        planned: Its rows and shapes.
        found: Findings in the rows.
    """
    portions = planned.portions
    return Preflight(
        steps=planned.steps,
        rows=int(sum(portion.counts.sum() for portion in portions)),
        distinct=sum(len(portion.numbers) for portion in portions),
        failed=tuple(_failed(portions, found)),
        values=tuple(_values(portions, found)),
        shapes=planned.shapes,
        sources=tuple(_sources(portions, found)),
        slow_rows=tuple(
            SlowRows(
                int(first),
                int(last),
                int(rows),
                each,
                cpu,
                portions[int(which)].phases,
            )
            for which, first, last, rows, cpu, each in found.slow.tolist()
        ),
        slow_files=tuple(
            SlowFile(file, rows, seconds / rows)
            for file, rows, seconds in found.files
        ),
    )


def _failed(portions: Sequence[Portion], found: Findings) -> Sequence[FailedRow]:
    """Failed rows, each with its first epoch."""
    listed: dict[tuple[int, int], FailedRow] = {}  # by portion and row
    for which, visit, error in sorted(found.failed.tolist()):
        portion = portions[which]
        row = visit >> EPOCH_BITS
        epoch = visit - (row << EPOCH_BITS)
        if (which, row) in listed:
            continue
        part = portion.parts[int(portion.owners(np.array([row]))[0])]
        file = ""
        if len(listed) < _MOST_LOCATED:
            file = _file_of(portion, row, epoch)
        listed[(which, row)] = FailedRow(
            row,
            epoch,
            portion.phases,
            part.name,
            row - part.first_row,
            file,
            found.errors[error],
        )
    return [*listed.values()]


def _file_of(
    portion: Portion,
    row: int,
    epoch: int,
) -> str:
    locations = portion.reader.source.locate_visit(row, epoch)
    if not locations:
        return ""
    first = locations[0]
    if first.first is None:
        return redact(first.file)
    return f"{redact(first.file)} byte {first.first}"


def _values(portions: Sequence[Portion], found: Findings) -> Sequence[LeafValues]:
    """Values of every leaf of numbers that was looked at."""
    extremes = {
        (int(which), int(leaf)): (least, most)
        for which, leaf, least, most in found.extremes.tolist()
    }
    rows: dict[tuple[int, int, int], set[int]] = {}
    for which, leaf, visit, kind, _ in found.flagged.tolist():
        rows.setdefault((which, leaf, kind), set()).add(visit >> EPOCH_BITS)
    listed = []
    for which, portion in enumerate(portions):
        for leaf, name in enumerate(portion.names):
            flagged = [
                tuple(sorted(rows.get((which, leaf, kind), ())))
                for kind in (NOT_FINITE, BELOW, ABOVE)
            ]
            both = extremes.get((which, leaf), (None, None))
            if both[0] is not None or any(flagged):
                listed.append(LeafValues(name, portion.phases, *both, *flagged))
    return listed


def _sources(portions: Sequence[Portion], found: Findings) -> Sequence[SourceReading]:
    """Reading of each part, scaled from the distinct rows that were read to all visits."""
    read = {
        (int(which), int(part)): sums for which, part, *sums in found.read.tolist()
    }
    listed = []
    for which, portion in enumerate(portions):
        owners = portion.owners(portion.numbers >> EPOCH_BITS)
        distinct = np.bincount(owners, minlength=len(portion.parts)).tolist()
        row_bytes = sum(
            leaf.spec.nbytes // max(1, leaf.spec.dtype.itemsize) * leaf.dtype.itemsize
            for leaf in portion.leaves
        )
        for index, part in enumerate(portion.parts):
            rows = int(portion.counts[index])
            if not rows:
                continue
            done, seconds, cpu, located, stored, requests, nbytes = read.get(
                (which, index), [0.0] * 7
            )
            times = rows / max(1, distinct[index])
            each = rows / max(1.0, done)
            stored_bytes = None
            if located:
                stored_bytes = round(rows * stored / located)
            listed.append(
                SourceReading(
                    part.name,
                    portion.phases,
                    rows,
                    distinct[index],
                    rows * row_bytes,
                    stored_bytes,
                    round(times * requests),
                    round(times * nbytes),
                    seconds * each,
                    cpu * each,
                )
            )
    return listed
