"""Explanation: what a run will read, hold and skip on every host; the result of `Dataloader.explain`."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from loadax.core.formatting import count_text, size_text, table
from loadax.loader.inspection.partition_picture import PartitionPicture
from loadax.plan.mix import rows_text


class Spread(NamedTuple):
    """A figure that hosts (or rows) differ in: its least, its median and its largest value."""

    least: float
    median: float
    most: float


def spread_of(values: ArrayLike) -> Spread:
    """The spread of these numbers."""
    array = np.asarray(values)
    return Spread(array.min().item(), np.median(array).item(), array.max().item())


@final
@dataclass(frozen=True)
class Batches:
    """How epochs become batches.

    Args:
        batch_size: rows of the global batch.
        first, last: the steps that these figures are of; `last` is None when they have no end.
        steps: in all; None when they go on for ever.
        steps_per_epoch: in one epoch.
        num_epochs: None for ever.
        rows_per_epoch: positions of an epoch of the dataset.
        dropped, padded: rows that an epoch leaves out, or positions that it fills with zeros.
    """

    batch_size: int
    first: int
    last: int | None
    steps: int | None
    steps_per_epoch: int
    num_epochs: int | None
    rows_per_epoch: int
    dropped: int
    padded: int


@final
@dataclass(frozen=True)
class LeafPlan:
    """One leaf of the batch, and how it is cut."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    partition: str


@final
@dataclass(frozen=True)
class Reading:
    """What every host reads in a step.

    Args:
        rows: of the batch.
        nbytes: of them: only the columns that its devices hold, where the source and the maps allow that.
        times: how often the whole batch is read, over all hosts together.
        copies: how many hosts read each row.
        chunks: of the source, that the rows of a step lie in; None when it decodes row by row.
        files: that they lie in; None when the source does not say.
        decoded: rows decoded for each row used; None as for `chunks`. With `kept_open`, over a run; else for a step by
            itself, so caches may do better.
        kept_open: whether a block shuffle's chunks are kept until they are used up.
        steps: that were looked at for `chunks`, `files` and `decoded`.
        hosts: that were looked at for `chunks` and `decoded`.
    """

    rows: Spread
    nbytes: Spread
    times: float
    copies: Spread
    chunks: Spread | None
    files: Spread | None
    decoded: Spread | None
    kept_open: bool
    steps: int
    hosts: int


@final
@dataclass(frozen=True)
class Memory:
    """Memory that the loader takes, in bytes.

    Args:
        step: of one step, on each host.
        reading_ahead: most that steps read ahead take on a host; always room for one step.
        open_chunks: that a block shuffle keeps, on each host; None when it keeps none.
        batch: of one placed batch, on each device.
        placed: batches that are placed at a time: those ahead, and the consumer's.
    """

    step: Spread
    reading_ahead: int
    open_chunks: Spread | None
    batch: int
    placed: int


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What a run will do, in figures.

    `print` it; `to_dict()` for programs; `picture(path)` and `text_picture()` to look at.

    Args:
        data: what is read.
        order: its verbs, in words.
        batches: how epochs become batches.
        mesh: the axes and their sizes.
        hosts: processes that own devices.
        devices: of all of them.
        leaves: of the batch, and how they are cut.
        reading: what every host reads in a step.
        memory: what it takes.
        warnings: what will cost more than it has to, in sentences that say what to do.
        partition_picture: who holds which part of the leaf with the most bytes.
    """

    data: str
    order: tuple[str, ...]
    batches: Batches
    mesh: dict[str, int]
    hosts: int
    devices: int
    leaves: tuple[LeafPlan, ...]
    reading: Reading
    memory: Memory
    warnings: tuple[str, ...]
    partition_picture: PartitionPicture

    def to_dict(self) -> dict[str, Any]:
        """All figures, as JSON can hold them."""
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "partition_picture"}
        return {name: _plain(value) for name, value in shown.items()}

    def text_picture(self, width: int = 100, colour: bool | None = None) -> str:
        """Which host holds which part of the batch, of the leaf with the most bytes, for the terminal.

        Args:
            width: characters of a line.
            colour: None: when stdout is a terminal, and `NO_COLOR` is not set.
        """
        return self.partition_picture.text(width, colour)

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Writes the same, in more detail, to a PNG file.

        Raises:
            UnsupportedError: When matplotlib is not installed.
        """
        self.partition_picture.png(path)

    def __str__(self) -> str:
        facts = [
            (name if place == 0 else "", text) for name, lines in self._facts() for place, text in enumerate(lines)
        ]
        width = max(len(name) for name, _ in facts) + 2
        text = "".join(f"{name:{width}}{line}\n" for name, line in facts)
        text += "\n" + table(("a host and step", "least", "median", "most"), list(self._figures()))
        if self.reading.chunks is not None:
            text += f"(chunks: {self._looked_at()})\n"
        return text + "".join(f"\nwarning: {warning}\n" for warning in self.warnings)

    def __repr__(self) -> str:
        return f"<Explanation of {self.batches.batch_size:,} rows on {self.hosts:,} hosts; print it>"

    def _facts(self) -> Iterator[tuple[str, list[str]]]:
        memory, reading = self.memory, self.reading
        yield "data", [self.data]
        yield "order", list(self.order)
        yield "batches", list(self._batches())
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        yield "mesh", [f"{axes}: {count_text(self.devices, 'device')} on {count_text(self.hosts, 'host')}"]
        yield (
            "leaves",
            [f"{leaf.path or 'the batch'} {leaf.dtype}{list(leaf.shape)} by {leaf.partition}" for leaf in self.leaves],
        )
        least, most = int(reading.copies.least), int(reading.copies.most)
        copies = count_text(most, "host") if least == most else f"{least} to {most} hosts"
        yield "copies", [f"each row is read by {copies}; all hosts together read the batch {reading.times:.2f} times"]
        chunks = [] if memory.open_chunks is None else [f"open chunks: {size_text(memory.open_chunks.most)}"]
        yield "of a host", [f"reading ahead: at most {size_text(memory.reading_ahead)}", *chunks]
        yield (
            "of a device",
            [f"{memory.placed} batches of {size_text(memory.batch)}: {size_text(memory.placed * memory.batch)}"],
        )

    def _batches(self) -> Iterator[str]:
        batches = self.batches
        epochs = "for ever" if batches.num_epochs is None else count_text(batches.num_epochs, "epoch")
        steps = "" if batches.steps is None else f": {batches.steps:,} steps"
        yield f"{batches.batch_size:,} rows, {epochs}{steps}"
        left = (
            f"{batches.dropped:,} rows dropped"
            if batches.dropped
            else f"{batches.padded:,} rows of padding"
            if batches.padded
            else ""
        )
        yield (
            f"an epoch: {rows_text(batches.rows_per_epoch)} rows, {rows_text(batches.steps_per_epoch)} steps"
            + f", {left}" * bool(left)
        )
        if batches.first or (batches.last is not None and batches.last + 1 != batches.steps):
            last = "the end" if batches.last is None else f"{batches.last:,}"
            yield f"these figures: steps {batches.first:,} to {last}"

    def _figures(self) -> Iterator[list[str]]:
        reading = self.reading
        yield ["rows read", *(f"{each:,.0f}" for each in reading.rows)]
        yield ["bytes read", *map(size_text, reading.nbytes)]
        for name, figure in (("chunks met", reading.chunks), ("files met", reading.files)):
            if figure is not None:
                yield [name, *(f"{each:,.1f}".removesuffix(".0") for each in figure)]
        if reading.decoded is not None:
            yield ["rows decoded for each used", *(f"{each:,.2f}" for each in reading.decoded)]
        yield ["memory for a step", *map(size_text, self.memory.step)]

    def _looked_at(self) -> str:
        reading = self.reading
        kept = "kept open until used up" if reading.kept_open else "each step by itself, without caches"
        return f"from {count_text(reading.steps, 'step')} of {count_text(reading.hosts, 'host')}; {kept}"


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return value._asdict()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value
