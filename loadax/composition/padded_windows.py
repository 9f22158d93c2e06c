"""PaddedWindowSource: windows that go beyond their group, with a leaf that tells which rows are padding."""

from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np

from loadax.composition.windowed import WindowSource
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import ArgumentError
from loadax.protocols import (
    Array,
    ArraySpec,
    Boxes,
    Integers,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, WrapperSource

MASK = "window_mask"


@final
class PaddedWindowSource(WrapperSource):
    """Windows of a `WindowSource` that repeats the rows at the ends of a group, and masks of their rows.

    A dict of rows gets the leaf "window_mask", bool[length], True for rows of the group; other examples become dicts of
    "data" and "window_mask". Windows with targets get "inputs_mask" and "targets_mask" beside them.

    Args:
        windows: The windows.
        pad: Values of padded rows: "edge", those of the nearest row of the group; or "zeros".

    Raises:
        ArgumentError: When rows have a leaf "window_mask", or objects where zeros are asked for.
    """

    spec: Tree = None

    def __init__(self, windows: WindowSource, pad: Literal["edge", "zeros"]):
        super().__init__(windows)
        self._windows = windows
        self._pad = pad
        self._specs, self._structure = flatten_spec(windows.spec)
        objects = [
            path or "of the rows"
            for path, leaf in zip(self._structure.paths, self._specs, strict=True)
            if leaf.dtype.hasobject
        ]
        if objects and pad == "zeros":
            raise ArgumentError(
                f"pad='zeros': leaf {objects[0]} has objects, such as texts, which "
                "have no zero; pass pad='edge', or drop() the leaf before windows()"
            )
        masks = [
            ArraySpec((len(offsets),), np.dtype(bool)) for offsets in windows.offsets
        ]
        self.spec = self._example([*self._specs, *masks])
        # the number of the window's leaf, or behind them that of the mask, for each leaf
        self._numbers = flatten(
            self._example(list(range(len(self._specs) + len(masks))))
        )[0]
        self.traits = windows.traits._replace(attributes={})

    def _over(self, source: BaseSource) -> BaseSource:
        assert isinstance(source, WindowSource)
        return PaddedWindowSource(source, self._pad)

    def __repr__(self) -> str:
        return repr(self._windows)

    def read(self, rows: Integers) -> Tree:
        return self.read_visits(Visits(rows, np.zeros_like(rows)))

    def read_visits(self, visits: Visits) -> Tree:
        leaves = flatten(self._windows.read_visits(visits))[0]
        places = self._windows.places(visits.rows)
        masks = [places.inside(offsets) for offsets in self._windows.offsets]
        if self._pad == "zeros":
            self._clear(leaves, masks, [slice(None)] * len(leaves))
        return self._example([*leaves, *masks])

    def read_examples(self, visits: Visits) -> list[Tree]:
        return BaseSource.read_examples(self, visits)

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        places = self._windows.places(rows)
        masks = [places.inside(offsets) for offsets in self._windows.offsets]
        count = len(self._specs)
        inner_boxes: list[Any] = [None] * count
        inner_out: list[Any] = [None] * count
        for number, box, destination in zip(self._numbers, boxes, out, strict=True):
            if box is None or destination is None:
                continue
            if number < count:
                inner_boxes[number] = box
                inner_out[number] = destination
            else:
                destination[...] = masks[number - count][:, slice(*box[0])]
        if any(box is not None for box in inner_boxes):
            if self.traits.reads_columns:
                self._windows.read_placed(places, inner_boxes, inner_out)
            else:
                self._windows.read_into(rows, inner_boxes, inner_out)
        if self._pad == "zeros":
            asked = [slice(*box[0]) if box else slice(None) for box in inner_boxes]
            self._clear(inner_out, masks, asked)

    def _clear(
        self, leaves: Outputs, masks: Sequence[Array], asked: Sequence[slice]
    ) -> None:
        """Puts zeros in place of the rows of windows that are padding.

        Args:
            leaves: Rows of the windows for each leaf.
            masks: Mask of the rows of each part of an example.
            asked: Rows of a window that each leaf has.
        """
        for number, (leaf, rows) in enumerate(zip(leaves, asked, strict=True)):
            # leaves of targets come after those of inputs
            part = number * len(masks) // len(leaves)
            if leaf is not None:
                leaf[~masks[part][:, rows]] = 0

    def _example(self, leaves: Sequence[Any]) -> Tree:
        """An example of the leaves of a window and then its masks."""
        count = len(self._specs)
        example = self._structure.build(leaves[:count])
        if len(leaves) > count + 1:
            return {
                **example,
                "inputs_mask": leaves[count],
                "targets_mask": leaves[count + 1],
            }
        if not isinstance(example, dict):
            return {"data": example, MASK: leaves[count]}
        if MASK in example:
            raise ArgumentError(
                f"rows have a leaf {MASK!r}, which padded windows add; rename() it "
                "before windows()"
            )
        return {**example, MASK: leaves[count]}
