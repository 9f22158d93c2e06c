"""Receipt: what a run has read until a step, by source."""

import json
import os
import platform
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import numpy as np

from loadax.core.arguments import integer, shown
from loadax.core.formatting import count_text, table
from loadax.core.version import __version__
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, RowIndexError
from loadax.loader.order_hash import OrderHash, hash_of
from loadax.loader.phases import Phases
from loadax.loader.receipts.contents import Contents
from loadax.loader.receipts.data_files import DataFile, combined, locations_of
from loadax.plan.find import find
from loadax.plan.reads import reads_of
from loadax.plan.steps import Steps
from loadax.plan.tally import Counted, Tally, Tokens, tally
from loadax.protocols import Integers
from loadax.redaction import redact
from loadax.sources.base import BaseSource, all_parts

if TYPE_CHECKING:
    from loadax.loader.checkpoint import FutureFolder

VERSION = 1  # of the JSON
FILE = "loadax.receipt.json"  # name of the file in a folder of Orbax
_LARGEST = 4096  # bytes of the JSON
_LONGEST_NAME = 64  # characters of a name in the JSON
_OTHERS = "others"


class ReceiptPhase(NamedTuple):
    """A phase of a run.

    Args:
        plan: Its steps.
        dataset: Its dataset.
        order: Hash of its order.
        quarantine: Rows that are never read, sorted int64[n].
        first_step: Step of the run that is its step 0.
        steps: Number of its steps that the receipt is of.
    """

    plan: Steps
    dataset: Dataset
    order: OrderHash
    quarantine: Integers
    first_step: int
    steps: int


@final
@dataclass(frozen=True)
class SourceReceipt:
    """What a run has read of one source.

    Args:
        name: Part of a mixture or concatenation, as in `Dataloader.trace`; "" for data without parts.
        phase: Index of the loader in a chain.
        rows: Number of rows in batches, each as often as it was there. No padding, and no rows in quarantine.
        tokens: Their tokens, where rows are documents, packed, or windows of tokens: as stored, before maps. None for
            other rows.
        epochs: Number of epochs of this source that were begun.
        distinct: Number of different rows.
        files: Its files with sizes, and times of change or ETags; and digests of bytes with `contents="digest"`.
    """

    name: str
    phase: int
    rows: int
    tokens: int | None
    epochs: int
    distinct: int
    files: tuple[DataFile, ...] = field(repr=False)

    def to_dict(self, by_file: bool) -> dict[str, Any]:
        """The counts as JSON. `by_file`: whether each file is listed."""
        told: dict[str, Any] = {
            "name": _short(self.name),
            "phase": self.phase,
            "rows": self.rows,
            "epochs": self.epochs,
            "distinct": self.distinct,
        }
        if self.tokens is not None:
            told["tokens"] = self.tokens
        if self.files:
            told["files"] = _told(self.files, by_file)
        return told


@final
@dataclass(frozen=True, eq=False, repr=False)
class Receipt:
    """What a run has read before a step, from `Dataloader.receipt`.

    Pass it to Orbax beside the model, and the JSON is written into the checkpoint:
    `save_checkpointables(path, {"model": model, "data": batches, "receipt": loader.receipt(batches.get_state())})`.

    Args:
        step: The step: all earlier ones count.
        epoch: Epoch of the step.
        sources: What was read of each source.
        order: Hash of all that determines which rows are at which position of these steps. Equal for equal batches
            of rows, on any mesh.
        contents: Hash of the sizes, and times or ETags, of all files; or of their bytes with `contents="digest"`. ""
            if there are none.
        versions: Versions of loadax, JAX, NumPy and Python.
    """

    step: int
    epoch: int
    sources: tuple[SourceReceipt, ...]
    order: str
    contents: str
    versions: Mapping[str, str]
    _phases: tuple[ReceiptPhase, ...]

    @property
    def rows(self) -> int:
        """Number of rows of all sources."""
        return sum(source.rows for source in self.sources)

    @property
    def tokens(self) -> int | None:
        """Tokens of all sources. None: those of one are not known."""
        total = 0
        for source in self.sources:
            if source.tokens is None:
                return None
            total += source.tokens
        return total

    def saw(self, source: str, row: int) -> list[int]:
        """Steps before the receipt's that have a row, ascending; a step with it twice is there twice.

        Args:
            source: Name of the source, as in `sources`; "" for data without parts.
            row: Row of that source. Of packed documents: the packed row.

        Raises:
            ArgumentError: If there is no such source.
            RowIndexError: If the row is out of range.
        """
        row = integer("row", row)
        steps: list[int] = []
        sizes: list[int] = []
        for phase in self._phases:
            for name, part, first in all_parts(phase.dataset.source):
                if name == source:
                    sizes.append(len(part))
                    if 0 <= row < len(part):
                        steps += _steps_with(phase, first + row)
                    break  # those below it of this name only read for it
        if not sizes:
            names = sorted({one.name for one in self.sources})
            raise ArgumentError(
                f"saw({shown(source)}): the receipt has no such source; pass one of "
                f"{shown(names)}"
            )
        if not 0 <= row < max(sizes):
            raise RowIndexError(
                f"row {row} of {source!r} is out of range: pass a row of at least 0 "
                f"and below {max(sizes)}"
            )
        return sorted(steps)

    def to_dict(self) -> dict[str, Any]:
        """The receipt as JSON of less than 4 KB.

        It lists files as long as there is room, and else their number and a digest of all. Sources that have no room
        are added up in one called "others".
        """
        told: dict[str, Any] = {
            "version": VERSION,
            "step": self.step,
            "epoch": self.epoch,
            "rows": self.rows,
            "order": self.order,
            "contents": self.contents,
            "versions": dict(self.versions),
        }
        if self.tokens is not None:
            told["tokens"] = self.tokens
        for by_file in (True, False):
            told["sources"] = [one.to_dict(by_file) for one in self.sources]
            if len(_dumped(told)) < _LARGEST:
                return told
        sources: list[dict[str, Any]] = told["sources"]
        dropped: list[SourceReceipt] = []
        by_rows = sorted(self.sources, key=lambda one: (one.rows, one.name))
        for one in by_rows:
            sources.remove(one.to_dict(by_file=False))
            dropped.append(one)
            told[_OTHERS] = {
                "sources": len(dropped),
                "rows": sum(one.rows for one in dropped),
                "distinct": sum(one.distinct for one in dropped),
            }
            if len(_dumped(told)) < _LARGEST:
                break
        return told

    def to_json(self) -> str:
        """The receipt as JSON with sorted keys and one value a line, so that `diff` compares two of them."""
        return _dumped(self.to_dict())

    def __repr__(self) -> str:
        header = ["source", "rows", "tokens", "epochs", "distinct", "files"]
        lines = [
            [
                one.name or "data",
                f"{one.rows:,}",
                "" if one.tokens is None else f"{one.tokens:,}",
                str(one.epochs),
                f"{one.distinct:,}",
                str(len(one.files)),
            ]
            for one in self.sources
        ]
        steps = count_text(self.step, "step")
        return f"{steps}, order {self.order}\n{table(header, lines)}".rstrip("\n")

    def save(self, directory: "FutureFolder") -> Coroutine[Any, Any, Awaitable[None]]:
        """Writes the JSON into a folder: Orbax calls this.

        Raises:
            ArgumentError: If the folder is not Orbax's.
        """
        from loadax.loader.checkpoint import FutureFolder, check_folder, returned

        check_folder("save", directory, FutureFolder)
        return returned(_write(self.to_json(), directory))

    def load(self, directory: Path) -> Coroutine[Any, Any, Awaitable[None]]:
        """Compares nothing, and changes nothing: Orbax calls this for a receipt among what is restored.

        Raises:
            ArgumentError: If the folder is not Orbax's.
        """
        from loadax.loader.checkpoint import check_folder, loaded, returned

        check_folder("load", directory, os.PathLike)
        return returned(loaded())


async def _write(text: str, folder: "FutureFolder") -> None:
    created = await folder.await_creation()
    if jax.process_index() == 0:
        (created / FILE).write_text(text)


def receipt_of(
    steps: Phases,
    runs: Sequence[tuple[Steps, Dataset, OrderHash, Integers]],
    start: Any,
) -> Receipt:
    """The receipt of a step.

    Args:
        steps: Steps of all phases.
        runs: Plan, dataset, order and quarantine of each phase.
        start: Step of the run, or a state.

    Raises:
        StateError: If it is neither.
    """
    step = steps.start_of(start)
    begun = steps.ranges(0, step) or [(0, range(0))]
    phases = [
        ReceiptPhase(*runs[number], steps.first_steps[number], len(local))
        for number, local in begun
    ]
    epoch = steps.epoch_of(step)
    sources: list[SourceReceipt] = []
    files: dict[str, DataFile] = {}
    for number, phase in enumerate(phases):
        of_phase = phase.order.contents
        if not isinstance(of_phase, Contents):  # states have nothing of them
            of_phase = Contents(phase.dataset, None)
        known = {file.location: file for file in of_phase.best}
        files |= known
        for name, part, counted, has_tokens in _counted(phase):
            own = [
                known[location]
                for location in locations_of(part, of_phase.has_digests)
                if location in known
            ]
            sources.append(
                SourceReceipt(
                    name,
                    number,
                    counted.rows,
                    counted.tokens if has_tokens else None,
                    counted.epochs,
                    counted.distinct,
                    tuple(own),
                )
            )
    digest = ""
    if files:
        every = [files[location] for location in files]
        digest = combined(every, _field(every))
    return Receipt(
        step,
        epoch,
        tuple(sources),
        hash_of([_described(phase) for phase in phases]),
        digest,
        {
            "loadax": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        tuple(phases),
    )


def _field(files: Sequence[DataFile]) -> str:
    if all(file.digest for file in files):
        return "digest"
    return "generation"


def _counted(
    phase: ReceiptPhase,
) -> list[tuple[str, BaseSource, Tally, bool]]:
    """Name, source and counts of each source, and whether its rows have tokens."""
    source = phase.dataset.source
    parts = [
        (name, part, first)
        for name, part, first in all_parts(source)
        if all(child.first_row is None for child in part.children) and len(part)
    ]
    asked = [Counted(first, _tokens(part)) for _, part, first in parts]
    counts = tally(
        phase.plan.order,
        len(source),
        reads_of(phase.plan, phase.steps),
        asked,
        phase.quarantine,
    )
    return [
        (name, part, counted, one.tokens is not None)
        for (name, part, _), one, counted in zip(parts, asked, counts, strict=True)
    ]


def _tokens(source: BaseSource) -> Tokens:
    """Tokens of the rows of a source."""
    if source.row_tokens:
        return source.row_tokens
    if source.tokens(np.zeros(1, np.int64)) is None:
        return None

    def tokens(rows: Integers) -> Integers:
        found = source.tokens(rows)
        assert found is not None
        return found

    return tokens


def _steps_with(phase: ReceiptPhase, row: int) -> list[int]:
    """Steps of the run that have a row of a phase's source."""
    if row in phase.quarantine:
        return []
    found = find(phase.plan, row, range(phase.steps))
    return [phase.first_step + place.step for place in found]


def _described(phase: ReceiptPhase) -> list[Any]:
    """Everything that determines the steps of a phase, as JSON."""
    plan = phase.plan
    whole = 0
    if phase.steps:
        whole = plan.skips.whole_step(phase.steps - 1) + 1
    epoch, position = plan.position_of_whole_step(whole)
    sizes = [entry for entry in plan.schedule if entry[0] < max(whole, 1)]
    buckets = [bucket[:3] for bucket in plan.buckets]
    return [
        phase.order(epoch, position),
        whole,
        sizes,
        buckets,
        plan.remainder,
        plan.skips.before(whole).ranges,
        plan.costs is not None,
        phase.order.key_seed,
        hash_of(phase.quarantine.tolist()),
    ]


def _told(files: Sequence[DataFile], by_file: bool) -> Any:
    """Files as JSON."""
    if by_file:
        listed = {_name(file): _facts(file) for file in files}
        if len(listed) == len(files):
            return listed
    told: dict[str, Any] = {
        "count": len(files),
        "bytes": sum(max(0, file.size) for file in files),
    }
    told[_field(files)] = combined(files, _field(files))
    return told


def _facts(file: DataFile) -> list[Any]:
    facts: list[Any] = [file.size, file.generation]
    if file.digest:
        facts.append(file.digest)
    return facts


def _name(file: DataFile) -> str:
    return _short(redact(file.location).rpartition("/")[2] or file.location)


def _short(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 1]}…"


def _dumped(told: Mapping[str, Any]) -> str:
    return json.dumps(told, sort_keys=True, indent=1) + "\n"
