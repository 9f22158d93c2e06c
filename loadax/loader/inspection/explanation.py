"""Explanation: what a run will read, hold and drop on every host; the result of `Dataloader.explain`."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike

from loadax.core.formatting import count_text, size_text, table
from loadax.core.replacements import missing_attribute
from loadax.plan.mix import ENDLESS

if TYPE_CHECKING:
    from loadax.pictures.figure import Picture
    from loadax.pictures.panels import Panels


@final
@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest value of a figure over hosts (or rows)."""

    least: float
    median: float
    most: float

    def texts(self, text: Callable[[float], str]) -> list[str]:
        """The values as text."""
        return [text(self.least), text(self.median), text(self.most)]


def spread_of(values: ArrayLike) -> Spread:
    """Computes the spread of some values."""
    array = np.asarray(values)
    return Spread(array.min().item(), np.median(array).item(), array.max().item())


@final
@dataclass(frozen=True)
class BatchFigures:
    """How epochs become batches.

    Args:
        batch_size: Rows of the global batch.
        first, last: First and last step that the figures apply to; `last` is None for an infinite run.
        steps: Number of steps of the run; None: infinite.
        steps_per_epoch: Number of steps per epoch.
        num_epochs: Number of epochs; None: infinite.
        rows_per_epoch: Positions per epoch of the dataset.
        dropped, padded: Rows that an epoch drops, or positions that it pads.
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
    """One leaf of the batch and its partition."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    partition: str

    def __str__(self) -> str:
        return (
            f"{self.path or 'the batch'} {self.dtype}{list(self.shape)} by "
            f"{self.partition}"
        )


@final
@dataclass(frozen=True)
class BlocksRead:
    """Blocks of a block shuffle that a host reads.

    Args:
        blocks: Number of blocks of the dataset.
        epoch: Blocks that a host reads in an epoch.
        run: Blocks that it reads over the whole run: without pinned lanes, their expected number.
        pinned: Whether they are the same ones in every epoch.
    """

    blocks: int
    epoch: Spread
    run: Spread
    pinned: bool

    def __str__(self) -> str:
        run = f"{self.run.most:,.0f}"
        blocks = count_text(self.blocks, "block")
        text = f"a host reads {self.epoch.most:,.0f} of {blocks}"
        if self.pinned:
            return f"{text}, the same ones in every epoch (pinned lanes)"
        if round(self.run.most) == round(self.epoch.most):
            return text
        return f"{text} in an epoch, and about {run} over the run"


@final
@dataclass(frozen=True)
class Reading:
    """Rows and bytes that every host reads per step.

    Args:
        rows: Rows of the batch.
        nbytes: Bytes of these rows; only the columns of its devices if the source and the maps allow that.
        times: Number of times that all hosts together read the batch.
        copies: Number of hosts that read each row.
        chunks: Chunks of the source; None if it has none.
        files: Files of the source; None if they are unknown.
        decoded: Rows decoded per row used; None like `chunks`. With `kept_open`, over a whole run; else for a single
            step, without the effect of caches.
        blocks: Blocks of block shuffles; None without a block shuffle, or on one host.
        kept_open: Whether the chunks of a block shuffle are cached until they are used up.
        steps: Number of steps sampled for `chunks`, `files` and `decoded`.
        hosts: Number of hosts sampled for `chunks` and `decoded`.
    """

    rows: Spread
    nbytes: Spread
    times: float
    copies: Spread
    chunks: Spread | None
    files: Spread | None
    decoded: Spread | None
    blocks: BlocksRead | None
    kept_open: bool
    steps: int
    hosts: int


@final
@dataclass(frozen=True)
class Storage:
    """Requests to remote storage, without those that are sent a second time since they failed or were late.

    Args:
        requests: Requests with which this process has opened the data, as counted. In a run of several processes, one
            opens it and tells the others.
        nbytes: Bytes of contents that these requests answered.
        apart: Requests with which all hosts open the data if they are not processes of one run of JAX; with `index=`,
            those of hosts that share its folder.
        step_requests: Requests of a host per step, over sampled steps.
        step_bytes: Bytes of these.
        epoch_requests: Requests of all hosts in an epoch; beyond the sampled steps, as in these.
        epoch_bytes: Bytes of these.
        steps: Number of steps sampled, one after the other.
    """

    requests: int
    nbytes: int
    apart: int
    step_requests: Spread
    step_bytes: Spread
    epoch_requests: int
    epoch_bytes: int
    steps: int

    def lines(self, hosts: int) -> list[str]:
        """The figures of the start and of an epoch as text, for a number of hosts."""
        opened = f"{count_text(self.requests, 'request')} ({size_text(self.nbytes)})"
        if hosts > 1:
            opened += (
                f" by one process; {self.apart:,} by {hosts:,} that open it apart"
            )
        return [
            f"at start: {opened}",
            (
                f"an epoch: {count_text(self.epoch_requests, 'request')} "
                f"({size_text(self.epoch_bytes)}) of all hosts"
            ),
        ]


@final
@dataclass(frozen=True)
class Memory:
    """Memory of the loader, in bytes.

    Args:
        step: Memory of one step per host.
        reading_ahead: Limit for steps read ahead per host; at least one step.
        open_chunks: Memory of a block shuffle's chunks per host; None if there are none.
        batch: Memory of one placed batch per device.
        placed: Number of batches on the devices: those ahead, and the consumer's.
    """

    step: Spread
    reading_ahead: int
    open_chunks: Spread | None
    batch: int
    placed: int


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Figures of a run.

    `print` shows a table, `plot` draws the order, and `to_dict()` is for programs.

    Args:
        data: Source of the dataset.
        order: Verbs of the dataset.
        batches: How epochs become batches.
        mesh: Sizes of the mesh axes.
        hosts: Number of processes that own devices.
        devices: Number of devices.
        leaves: Leaves of the batch and their partition.
        host_leaves: Leaves that stay on the host, with dtype and the shape of a row.
        reading: What every host reads per step.
        storage: What hosts request of remote storage; None: all data is local.
        balance: Number of parts that the mesh cuts the rows of a batch into, and how many times the mean cost the
            most expensive part costs, averaged over sampled steps: without `balance=`, and with it. None: no balance.
        buckets: Length, batch size, steps in an epoch, and share of padding in the rows of each bucket.
        memory: Memory of the loader.
        warnings: Avoidable costs, each with advice.
        shares: Of a mixture by tokens: name of each dataset, and its shares of the rows and of the tokens of an epoch,
            or of the first 2**20 rows of a longer one.
        later: First step and explanation of each later phase of a chain.
        panels: Makes the panels of `plot`.
    """

    data: str
    order: tuple[str, ...]
    batches: BatchFigures
    mesh: dict[str, int]
    hosts: int
    devices: int
    leaves: tuple[LeafPlan, ...]
    host_leaves: tuple[str, ...]
    reading: Reading
    storage: Storage | None
    balance: tuple[int, float, float] | None
    buckets: tuple[tuple[int, int, int, float], ...]
    memory: Memory
    warnings: tuple[str, ...]
    shares: tuple[tuple[str, float, float], ...] = ()
    later: tuple[tuple[int, "Explanation"], ...] = ()
    panels: "Callable[[], Panels]" = field(default=dict)

    if not TYPE_CHECKING:  # type checkers must still report misspelt names
        __getattr__ = missing_attribute

    def plot(self, *panels: str) -> "Picture":
        """Draws the order; `plot().savefig("order.svg")` saves it. The mesh may be a planned one.

        Takes a second or two for any number of steps and hosts: of many, it shows evenly spaced ones, and says so.

        Args:
            panels: Panels to draw, of those that the order has: "mesh", who holds what of a batch; "mixture", shares of
                datasets over the steps; "packing", documents in packed rows; "buckets", padding by bucket; "balance",
                costs of the parts of a step without `balance=` and with it; "chunks", those that each host reads. None:
                all of them.

        Returns:
            A `matplotlib.figure.Figure` in the style of `matplotlib.rcParams`, which notebooks show as SVG.

        Raises:
            ArgumentError: If the order has no such panel.
            UnsupportedError: If matplotlib is not installed; says what to install.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, from_arrays, mix
            >>> parts = {name: from_arrays(np.arange(90)).shuffle(seed=0) for name in ("web", "code")}
            >>> loader = Dataloader(mix(parts, {"web": 2, "code": 1}), batch_size=16)
            >>> [axes.get_title("left") for axes in loader.explain().plot("mixture").axes]
            ['Mixture: shares of rows']
        """
        from loadax.pictures.panels import draw

        every = {name: [*found] for name, found in self.panels().items()}
        for first, phase in self.later:
            for name, later in phase.panels().items():
                every[name] += [
                    panel._replace(title=f"From step {first:,} on: {panel.title}")
                    for panel in later
                ]
        return draw(every, panels)

    def to_dict(self) -> dict[str, Any]:
        """All figures as a JSON-serialisable dict."""
        figures = replace(self, later=(), panels=dict)
        plain: dict[str, Any] = asdict(figures)
        del plain["panels"]
        plain["later"] = [[first, phase.to_dict()] for first, phase in self.later]
        return dict(json.loads(json.dumps(plain)))

    def __str__(self) -> str:
        facts = [
            (name if index == 0 else "", text)
            for name, lines in self._facts()
            for index, text in enumerate(lines)
        ]
        width = max(len(name) for name, _ in facts) + 2
        text = "".join(f"{name:{width}}{line}\n" for name, line in facts)
        text += "\n" + table(
            ("per host and step", "least", "median", "most"), list(self._figures())
        )
        reading = self.reading
        if reading.chunks is not None:
            if reading.kept_open:
                kept = "kept open until used up"
            else:
                kept = "each step by itself, without caches"
            sampled = (
                f"{count_text(reading.steps, 'step')} of "
                f"{count_text(reading.hosts, 'host')}"
            )
            text += f"(chunks: from {sampled}; {kept})\n"
        text += "".join(f"\nwarning: {warning}\n" for warning in self.warnings)
        return text + "".join(
            f"\nfrom step {first:,} on\n{phase}" for first, phase in self.later
        )

    def _repr_html_(self) -> str:
        return "<pre>" + escape(str(self)) + "</pre>"

    def __repr__(self) -> str:
        return (
            f"<Explanation of {count_text(self.batches.batch_size, 'row')} on "
            f"{count_text(self.hosts, 'host')}; print it, or draw it: .plot()>"
        )

    def _facts(self) -> Iterator[tuple[str, list[str]]]:
        memory = self.memory
        reading = self.reading
        yield "data", [self.data]
        yield "order", list(self.order)
        yield "batches", list(self._batches())
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        yield (
            "mesh",
            [
                (
                    f"{axes}: {count_text(self.devices, 'device')} on "
                    f"{count_text(self.hosts, 'host')}"
                )
            ],
        )
        yield "leaves", list(map(str, self.leaves))
        if self.balance is not None:
            parts, before, now = self.balance
            yield (
                "balance",
                [
                    (
                        f"the most expensive of {count_text(parts, 'part')} costs "
                        f"{now:.3f} times the mean, {before:.3f} times without "
                        "balance="
                    )
                ],
            )
        if self.shares:
            yield (
                "shares",
                [
                    f"{name}: {rows:.1%} of rows, {tokens:.1%} of tokens"
                    for name, rows, tokens in self.shares
                ],
            )
        if self.buckets:
            entries = sum(
                length * size * steps for length, size, steps, _ in self.buckets
            )
            padding = (
                sum(
                    length * size * steps * share
                    for length, size, steps, share in self.buckets
                )
                / entries
            )
            lines = [
                f"length {length:,}: {count_text(steps, 'step')} of "
                f"{count_text(size, 'row')}, {share:.1%} padding"
                for length, size, steps, share in self.buckets
            ]
            yield "buckets", [f"an epoch, {padding:.1%} padding", *lines]
        if self.host_leaves:
            yield "host leaves", list(self.host_leaves)
        least = int(reading.copies.least)
        most = int(reading.copies.most)
        if least == most:
            copies = count_text(most, "host")
        else:
            copies = f"{least} to {most} hosts"
        if reading.times == 1:
            times = "nothing is read twice"
        else:
            times = f"{reading.times:.2f} bytes are read for each byte of the batch"
        yield "copies", [f"each row is read by {copies}; {times}"]
        if reading.blocks is not None:
            yield "blocks", [str(reading.blocks)]
        if self.storage is not None:
            yield "storage", self.storage.lines(self.hosts)
        if memory.open_chunks is None:
            chunks = []
        else:
            chunks = [f"open chunks: {size_text(memory.open_chunks.most)}"]
        yield (
            "per host",
            [f"reading ahead: at most {size_text(memory.reading_ahead)}", *chunks],
        )
        placed = (
            f"{count_text(memory.placed, 'batch', 'batches')} of "
            f"{size_text(memory.batch)}: {size_text(memory.placed * memory.batch)}"
        )
        yield "per device", [placed]

    def _batches(self) -> Iterator[str]:
        batches = self.batches
        if batches.num_epochs is None:
            epochs = "infinitely many epochs"
        else:
            epochs = count_text(batches.num_epochs, "epoch")
        if batches.steps is None:
            steps = ""
        else:
            steps = f": {count_text(batches.steps, 'step')}"
        yield f"{count_text(batches.batch_size, 'row')}, {epochs}{steps}"
        if batches.dropped:
            dropped = f", {count_text(batches.dropped, 'row')} dropped"
        else:
            dropped = ""
        if batches.padded:
            padded = f", {count_text(batches.padded, 'row')} of padding"
        else:
            padded = ""
        endless = batches.rows_per_epoch >= ENDLESS
        if endless:
            size = "endless"
        else:
            rows = count_text(batches.rows_per_epoch, "row")
            size = f"{rows}, {count_text(batches.steps_per_epoch, 'step')}"
        yield f"an epoch: {size}{dropped}{padded}"
        if batches.first or (
            batches.last is not None and batches.last + 1 != batches.steps
        ):
            if batches.last is None:
                last = "the end"
            else:
                last = f"{batches.last:,}"
            yield f"these figures: steps {batches.first:,} to {last}"

    def _figures(self) -> Iterator[list[str]]:
        reading = self.reading
        yield ["rows read", *reading.rows.texts("{:,.0f}".format)]
        yield ["bytes read", *reading.nbytes.texts(size_text)]
        if self.storage is not None:
            requests = self.storage.step_requests.texts("{:,.2f}".format)
            yield ["requests to storage", *requests]
            yield ["bytes of these", *self.storage.step_bytes.texts(size_text)]
        for name, figure in (
            ("chunks met", reading.chunks),
            ("files read", reading.files),
        ):
            if figure is not None:
                yield [
                    name,
                    *figure.texts(lambda value: f"{value:,.1f}".removesuffix(".0")),
                ]
        if reading.decoded is not None:
            yield [
                "rows decoded for each used",
                *reading.decoded.texts("{:,.2f}".format),
            ]
        yield ["memory for a step", *self.memory.step.texts(size_text)]
