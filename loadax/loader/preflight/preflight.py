"""Reads, maps and checks the rows of planned steps in a kept pass; see `Dataloader.preflight`."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadax.core.arguments import number, shown
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.core.leaf_names import unknown_leaf
from loadax.core.spec import leaf_arrays
from loadax.errors import ArgumentError
from loadax.kept.index_folder import FILES, Entry, IndexFolder
from loadax.kept.kept_pass import PassOptions, check_index, kept_pass, part_size
from loadax.loader.phase import Phase
from loadax.loader.phases import Phases
from loadax.loader.preflight.check_rows import (
    PIECE_BYTES,
    PIECE_ROWS,
    Bounds,
    CheckWork,
    PartOfPortion,
)
from loadax.loader.preflight.findings import (
    findings_of,
    merged,
)
from loadax.loader.preflight.plan_rows import plan_rows
from loadax.loader.preflight.portion import EPOCH_BITS, Portion, chunk_numbers
from loadax.loader.preflight.report import Preflight
from loadax.loader.preflight.summary import report_of
from loadax.row_index.build import Options
from loadax.row_index.index_identity import shared_identity
from loadax.row_index.scan import threads_for
from loadax.sources.checks import chunk_starts
from loadax.writing.data_fingerprint import digest_of, identify, spread

_SAMPLE = 16  # rows of a source that nothing identifies
_FORM = 1  # of the findings that are kept


def preflight(
    phases: Sequence[Phase],
    steps: Phases,
    asked: Any,
    bounds: Any,
    options: Options,
) -> Preflight:
    """Checks the rows of planned steps.

    Args:
        phases: Phases of the run.
        steps: Steps of the run.
        asked: The user's `steps`.
        bounds: The user's `bounds`.
        options: Options of the pass.

    Raises:
        ArgumentError: If an argument can't be used.
        Exception: What would end the run although rows are masked, such as an error of the network.
    """
    ranges = steps.ranges_of(_range_of(asked))
    planned = plan_rows(phases, ranges, steps.first_steps)
    checked = _checked_bounds(bounds, planned.portions)
    rows = sum(len(portion.numbers) for portion in planned.portions)
    folder = None
    known_as = None
    if options.index is not None:
        folder = IndexFolder(options.index)
        known_as = _known_as(planned.portions, options)
    check_index(folder, "preflight", count_text(rows, "row"))
    if known_as is None:
        folder = None

    def begin() -> CheckWork:
        return CheckWork(planned.portions, checked, tuple(_parts(planned.portions)))

    entry = kept_pass(
        folder,
        "preflight",
        lambda: _identity(planned.portions, checked, known_as),
        lambda entry: _check(entry, planned.portions),
        begin,
        merged,
        PassOptions(
            max(
                threads_for(portion.reader, options.workers)
                for portion in planned.portions
            ),
            options.executor,
            options.progress,
        ),
    )
    return report_of(planned, findings_of(entry.arrays))


def _range_of(steps: Any) -> Any:
    """The range of steps that an int stands for: so many from step 0 on."""
    if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
        return range(steps)
    return steps


def _checked_bounds(
    bounds: Any, portions: Sequence[Portion]
) -> tuple[dict[int, Bounds], ...]:
    """Bounds of the leaves of each portion, by their index.

    Raises:
        ArgumentError: If no batch has such a leaf, or it is not of real numbers, or they are not two numbers.
    """
    given = bounds
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"bounds={shown(bounds)}: pass the least and the greatest value by leaf, "
            "{'x': (0, 1)}; None in place of one leaves it open",
            argument="bounds",
        )
    limits = {name: _limits(name, value) for name, value in given.items()}
    names = {name for portion in portions for name in portion.names}
    for name in limits:
        if name not in names:
            raise ArgumentError(
                f"bounds: {unknown_leaf(str(name), sorted(names))}", argument="bounds"
            )
    found: list[dict[int, Bounds]] = []
    for portion in portions:
        leaves: dict[int, Bounds] = {}
        for index, name in enumerate(portion.names):
            if name not in limits:
                continue
            dtype = portion.leaves[index].dtype
            if not np.can_cast(dtype, np.float64):
                raise ArgumentError(
                    f"bounds: leaf {name!r} is {dtype}, not a real number; leave it "
                    "out",
                    argument="bounds",
                )
            leaves[index] = limits[name]
        found.append(leaves)
    return tuple(found)


def _limits(name: Any, value: Any) -> Bounds:
    """The least and greatest value of a leaf; infinite if open."""
    remedy = "two numbers, the least and the greatest, or None in place of one"
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ArgumentError(
            f"bounds[{name!r}]={shown(value)}: pass {remedy}", argument="bounds"
        )
    low, high = value
    least = -np.inf
    most = np.inf
    if low is not None:
        least = number(f"bounds[{name!r}]", low, remedy)
    if high is not None:
        most = number(f"bounds[{name!r}]", high, remedy)
    return (float(least), float(most))


def _known_as(portions: Sequence[Portion], options: Options) -> list[Any] | None:
    """Identity of the maps; None, with a warning, if changes of one can be invisible."""
    given = None
    if options.key is not None:
        given = ["key", options.key]
    known: list[Any] = []
    for portion in portions:
        identity = shared_identity(
            [],
            given,
            portion.reader,
            options.index,
            options.executor,
            "pass key=, a text",
        )
        if identity is None:
            return None
        known.append(identity)
    return known


def _identity(
    portions: Sequence[Portion],
    bounds: Sequence[dict[int, Bounds]],
    known_as: Any,
) -> dict[str, Any]:
    """Identity of the findings: the rows, the maps, the leaves, the bounds and the data."""
    data = [identify(portion.reader.source) for portion in portions]
    described = [
        {
            "visits": digest_values(portion.numbers),
            "maps": portion.reader.describe(),
            "leaves": [
                [name, list(leaf.spec.shape), str(leaf.spec.dtype), str(leaf.dtype)]
                for name, leaf in zip(portion.names, portion.leaves, strict=True)
            ],
            "bounds": [[index, *map(str, both)] for index, both in limits.items()],
            "memory": known["memory"],
            "sample": None if any(known.values()) else _sample(portion),
        }
        for portion, limits, known in zip(portions, bounds, data, strict=True)
    ]
    files = None
    if any(known[FILES] for known in data):
        files = " ".join(str(known[FILES]) for known in data)
    return {
        "form": _FORM,
        "functions or key": known_as,
        "portions": described,
        FILES: files,
    }


def _sample(portion: Portion) -> str:
    """Hash of a few rows of data that neither files nor memory identify; of the errors of those that fail."""
    digest = hashlib.sha256()
    for index in spread(len(portion.numbers), _SAMPLE).tolist():
        try:
            (example,) = portion.reader.examples(portion.visits(index, index + 1))
            text = digest_of(leaf_arrays(example))
        except Exception as error:  # noqa: BLE001 - the check finds it too
            text = type(error).__name__
        digest.update(text.encode())
    return digest.hexdigest()[:16]


def _check(entry: Entry, portions: Sequence[Portion]) -> None:
    """Checks the findings of an index; raises `ValueError`."""
    found = findings_of(entry.arrays)
    for array in (found.failed, found.flagged, found.extremes, found.read):
        if len(array) and not 0 <= array[:, 0].min() <= array[:, 0].max() < len(
            portions
        ):
            raise ValueError("it has rows of other datasets")


def _parts(portions: Sequence[Portion]) -> Sequence[PartOfPortion]:
    """Cuts the rows into parts, by numbers alone; chunks stay whole."""
    parts: list[PartOfPortion] = []
    for which, portion in enumerate(portions):
        total = len(portion.numbers)
        if not total:
            continue
        together = max(1, min(PIECE_ROWS, PIECE_BYTES // portion.row_bytes))
        begins = np.arange(0, total, part_size(total, together))
        starts = chunk_starts(portion.reader.source)
        chunks = chunk_numbers(starts, portion.numbers >> EPOCH_BITS)
        if chunks is not None:
            begins = np.unique(np.searchsorted(chunks, chunks[begins]))
        ends = np.append(begins[1:], total)
        parts += [
            PartOfPortion(which, low, high)
            for low, high in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
    return parts
