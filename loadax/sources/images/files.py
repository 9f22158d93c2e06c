"""ImageFiles: compact names and classes of image files; a million take a few dozen megabytes."""

import os
from collections.abc import Sequence
from typing import final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from loadax.protocols import Integers


@final
class ImageFiles:
    """Files in row order: by class, then by name.

    Args:
        folder: Root folder; its URL ends with "/" if it is in a bucket.
        classes: Names of the classes, each a folder in `folder`; `("",)` if the files are in `folder` itself.
        names: Paths of the files of every class, relative to its folder.
        sizes: Sizes of all files in bytes, in row order, in a bucket; None: the folder is local.
    """

    def __init__(
        self, folder: str, classes: Sequence[str], names: Sequence[Sequence[str]], sizes: Sequence[int] | None = None
    ):
        self.folder = folder
        self.sizes = None if sizes is None else np.array(sizes, np.int64)
        self.classes = tuple(classes)
        encoded = [os.fsencode(name) for class_names in names for name in class_names]
        self._text = b"".join(encoded)
        self._bounds = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._ends = np.cumsum([len(class_names) for class_names in names], dtype=np.int64)  # of the rows of each class

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def labels(self, rows: Integers) -> NDArray[np.int32]:
        """Class numbers of rows, int32[n]."""
        return np.searchsorted(self._ends, rows, side="right").astype(np.int32)

    def path(self, row: int) -> str:
        """Path or URL of a file."""
        name = self._text[self._bounds[row] : self._bounds[row + 1]]
        label = int(np.searchsorted(self._ends, row, side="right"))
        if self.sizes is not None:
            return self.folder + quote("/".join(filter(None, (self.classes[label], os.fsdecode(name)))))
        return os.path.join(self.folder, self.classes[label], os.fsdecode(name))  # noqa: PTH118 - a Path is ten times slower
