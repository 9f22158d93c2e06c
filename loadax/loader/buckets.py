"""`Buckets`: batches of rows of similar length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from loadax.core.arguments import choice, index_key, integer, shown
from loadax.core.casting import fill_values
from loadax.core.digest import digest_values
from loadax.core.formatting import count_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.loader.padded_leaves import padded_leaves
from loadax.padding import Pad
from loadax.plan.batches import Remainder
from loadax.plan.buckets import Bucketed, BucketPlan, datasets_of, split
from loadax.plan.mix import ENDLESS, Mixed
from loadax.plan.order import depth_first
from loadax.plan.sample import Sampled
from loadax.plan.subset import met_rows
from loadax.protocols import Integers, Order
from loadax.row_index.build import Question, answers, scan_options
from loadax.row_index.integers import check_integers
from loadax.row_index.lengths import lengths_in
from loadax.transforms import Padding

_SAMPLED = 1 << 16  # rows of a bucket whose padding is averaged


@final
@dataclass(frozen=True)
class Buckets:
    """Batch sizes by length: each step has rows of one bucket, padded to its length, in a batch of its own size.

    For `Dataloader(batch_size=…)`. A row is in the shortest bucket that holds it, and its length is in a leaf
    "…_length" (int32), as `Dataset.pad` adds it. Leaves of numbers that are as long as the named leaf, such as labels
    and masks of tokens, are padded with it, each with a value of its own. The steps of the buckets are spread evenly
    over each epoch, and the rows of a bucket are in the order of the dataset, shuffled as it is. A mixture keeps its
    proportions in each bucket and over all. `loader.specs` lists the shapes.

    Lengths come from the offsets of the source, where it has them; else all rows are read once for them, and `index=`
    keeps the result. They are those before random maps and maps `with_epoch`, which must not make a row longer than its
    bucket.

    Args:
        leaf: Name of the leaf whose first dimension is the length; of a subtree, keys joined by dots. The leaves that
            are as long as it in the shortest and in the longest row are padded too, if these two lengths differ. Or a
            tuple of names: the first leaf decides, and these leaves alone are padded.
        sizes: Rows of a batch, by length of the bucket, such as `{128: 512, 256: 256, 512: 128}`.
        value: Value of the padding of the leaves that `leaf` names; that of others is 0. Or a dict of values by name,
            `{"labels": -100}`, 0 for the others. A leaf that it names is padded, as those of `leaf`.
        long: What becomes of rows that are longer than all buckets: they are an "error", "drop" leaves them out, "cut"
            truncates them, all of their padded leaves alike.
        index: Folder to keep the lengths in, if rows must be read for them.
        key: Identifier of the maps in it, for maps that can't be recognised by their code.

    Raises:
        ArgumentError: If a value can't be used; from `Dataloader`, if a row is longer than all buckets, the data is a
            stream, a `sample` or an endless mixture, or another argument does not go with buckets.
        LeafError: From `Dataloader`, if a row has no such leaf. On reading a row whose padded leaves are not equally
            long. Names the row and the leaf.

    Examples:
        >>> import numpy as np
        >>> from loadax import Buckets, Dataloader, from_source
        >>> rows = [{"tokens": np.arange(1 + row % 8)} for row in range(64)]
        >>> loader = Dataloader(from_source(rows), batch_size=Buckets("tokens", {4: 16, 8: 8}))
        >>> [batch["tokens"].shape for batch in loader]
        [(8, 8), (16, 4), (8, 8), (8, 8), (16, 4), (8, 8)]
        >>> rows = [{"tokens": np.ones(1 + row % 8), "labels": np.ones(1 + row % 8)} for row in range(64)]
        >>> buckets = Buckets("tokens", {4: 16, 8: 8}, value={"labels": -100})
        >>> Dataloader(from_source(rows), batch_size=buckets)[1]["labels"][0].tolist()
        [1.0, -100.0, -100.0, -100.0]
    """

    leaf: str | Sequence[str]
    sizes: Mapping[int, int]
    value: Any = 0
    long: str = "error"
    index: Any = None
    key: str | None = None

    def __post_init__(self) -> None:
        names = (self.leaf,) if isinstance(self.leaf, str) else self.leaf
        if (
            not isinstance(names, Sequence)
            or not names
            or not all(isinstance(name, str) for name in names)
        ):
            raise ArgumentError(
                f"leaf={shown(self.leaf)}: pass the name of the leaf whose length "
                "decides, or a tuple"
            )
        object.__setattr__(
            self,
            "leaf",
            self.leaf if isinstance(self.leaf, str) else tuple(dict.fromkeys(names)),
        )
        object.__setattr__(self, "value", fill_values(self.value))
        for name in self.value if isinstance(self.value, dict) else ():
            if name not in self.names:
                raise ArgumentError(
                    f"value has the key {name!r}, which is not in leaf={self.leaf}; "
                    "leave it out"
                )
        if not isinstance(self.sizes, Mapping) or not 0 < len(self.sizes) < 256:
            raise ArgumentError(
                f"sizes={shown(self.sizes)}: pass batch sizes by length: {{128: 512, "
                "256: 256}"
            )
        sizes = {
            integer("length", length, 1): integer("size", size, 1)
            for length, size in self.sizes.items()
        }
        object.__setattr__(self, "sizes", dict(sorted(sizes.items())))
        choice("long", self.long, ("error", "drop", "cut"))
        index_key(self.key, self.index, "the maps change")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the leaves that are named, first the one whose length decides."""
        if not isinstance(self.leaf, str):
            return tuple(self.leaf)
        named = self.value if isinstance(self.value, dict) else ()
        return tuple(dict.fromkeys([self.leaf, *named]))

    def steps(
        self,
        dataset: Dataset,
        num_epochs: int | None,
        remainder: Remainder,
        quarantine: Integers,
    ) -> "tuple[BucketPlan, tuple[tuple[int, Dataset], ...]]":
        """The steps of a run, and the padded dataset of each bucket by its first step; for `Dataloader`."""
        return bucketed(self, dataset, num_epochs, remainder, quarantine)


def _refuse(dataset: Dataset) -> None:
    if dataset.is_stream:
        raise ArgumentError(
            "batch_size=Buckets(…) needs the lengths of all rows, which a stream "
            "does not tell"
        )
    for order, _ in datasets_of(dataset.order, 0):
        drawn = next(
            (
                each
                for each in depth_first(order)
                if isinstance(each, Mixed | Sampled)
            ),
            None,
        )
        if drawn is not None:
            if isinstance(drawn, Mixed):
                verb = "mix"
            else:
                verb = "sample"
            raise ArgumentError(
                f"batch_size=Buckets(…): {verb}() draws other rows in every epoch, "
                f"so none can be chosen behind it and {order.text()[-1]}; pass a "
                "dataset without it, or a mix() with no verb but maps after it"
            )
    if isinstance(dataset.order, Mixed) and (
        dataset.order.by_step or dataset.order.size >= ENDLESS
    ):
        raise ArgumentError(
            "batch_size=Buckets(…) needs a mixture whose epochs end at an example: "
            "pass stop='first' or 'all', and by='example', to mix(), and "
            "num_epochs=None for an endless run"
        )


def bucketed(
    buckets: Buckets,
    dataset: Dataset,
    epochs: int | None,
    remainder: Remainder,
    quarantine: Integers,
) -> tuple[BucketPlan, tuple[tuple[int, Dataset], ...]]:
    """The plan of a run with buckets, and the padded dataset of each bucket by its first step.

    Args:
        buckets: The buckets.
        dataset: Dataset of the run.
        epochs: Number of epochs; None: endless.
        remainder: Handling of the last, partial batch of each bucket.
        quarantine: Rows that are never read, ascending.

    Raises:
        ArgumentError: As `Buckets`.
        LeafError: As `Buckets`.
    """
    _refuse(dataset)
    rows, lengths = _lengths(dataset, buckets)
    bounds = np.array([*buckets.sizes])
    bucket = np.searchsorted(bounds, lengths)
    long = np.flatnonzero(bucket == len(bounds))
    if len(long) and buckets.long == "error":
        raise ArgumentError(
            f"Buckets: row {rows[long[0]]} has length {lengths[long[0]]}, above "
            f"{bounds[-1]}, and so have {len(long) - 1:,} more; add a bucket, or "
            "pass long='cut' or 'drop'"
        )
    if buckets.long == "drop" and len(long) == len(rows) > 0:
        raise ArgumentError(
            f"Buckets: none of {count_text(len(rows), 'row')} fits {bounds[-1]}, the "
            "longest bucket, so long='drop' leaves none; add a bucket of length "
            f"{lengths.max()}, or pass long='cut'"
        )
    if buckets.long == "cut":
        bucket[long] = len(bounds) - 1
    chosen = [rows[bucket == number] for number in range(len(bounds))]
    rules = [
        ("bucket", int(length), digest_values(kept))
        for length, kept in zip(bounds, chosen, strict=True)
    ]
    orders = split(dataset.order, chosen, rules)

    def padding(order: Order | None, length: int) -> float:
        if order is None:
            return 0.0
        positions = np.linspace(0, order.size - 1, min(order.size, _SAMPLED)).astype(
            np.int64
        )
        visited = lengths[
            np.searchsorted(
                rows, order.visits(np.zeros_like(positions), positions).rows
            )
        ]
        return float(1 - np.minimum(visited, length).mean() / length)

    shares = tuple(map(padding, orders, buckets.sizes))
    sizes = (*buckets.sizes.values(),)
    plan = BucketPlan(
        Bucketed(
            dataset.order,
            tuple(orders),
            (*bounds.tolist(),),
            sizes,
            remainder,
            shares,
        ),
        epochs,
    )

    names = buckets.names
    value = buckets.value
    if isinstance(buckets.leaf, str):
        served = (bucket < len(bounds)) & ~np.isin(rows, quarantine)
        names = padded_leaves(dataset, names, rows[served], lengths[served])
        # it may be the number of a token
        if len(names) > 1 and not isinstance(value, dict):
            value = {buckets.leaf: value}

    def padded(first: int) -> Dataset:
        padding = Padding(
            dict.fromkeys(names, int(bounds[plan.bucket(first)])),
            value,
            buckets.long == "cut",
        )
        pad = Pad(padding, equal=True)
        return Dataset(dataset.source, plan.of(first).order, (*dataset.maps, pad))

    return plan, tuple(
        (segment.first, padded(segment.first)) for segment in plan.segments
    )


def _lengths(dataset: Dataset, buckets: Buckets) -> tuple[Integers, Integers]:
    """The rows that the order ever visits, and their lengths, int64[n] each."""
    met = np.zeros(dataset.reader.num_rows, bool)
    for order, part in datasets_of(dataset.order, len(met)):
        try:
            met[part.start : part.stop] = met_rows(order, "Buckets", len(part))
        except ArgumentError as error:
            raise ArgumentError(
                "batch_size=Buckets(…) needs the same rows in every epoch, but "
                f"{order.text()[-1]} may have others; slice before shuffle(), and "
                "shuffle with loadax"
            ) from error
    changing = (
        number
        for number, each in enumerate(dataset.maps)
        if each.rng or each.with_epoch
    )
    steady = Dataset(
        dataset.source, dataset.order, dataset.maps[: next(changing, None)]
    )
    rows = np.flatnonzero(met)
    reader = steady.reader
    if reader.traits.random:
        raise ArgumentError(
            f"batch_size=Buckets(…): rows of {dataset.source!r} are mapped at random "
            "within it, so their lengths may change; map them at random behind it"
        )
    lengths = reader.lengths(rows)
    leaf = buckets.names[0]
    if lengths is None:  # those of this leaf alone may be known
        reader = steady.keep(leaf).reader
        lengths = reader.lengths(rows)
    if lengths is None:
        judge = partial(lengths_in, "Buckets", leaf)
        check = partial(check_integers, 1)
        question = Question(
            "Buckets", leaf, judge, np.int64, ["length", leaf], None, check
        )
        lengths, _ = answers(
            question,
            reader,
            met,
            scan_options(buckets.index, None, None, None, buckets.key),
        )
    return rows, lengths
