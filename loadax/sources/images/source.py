"""ImageSource: decodes image files on read. `ImageFiles`: their names and classes, compactly."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from loadax.core.threads import thread_pool
from loadax.errors import SourceError
from loadax.files.byte_ranges import ByteRange
from loadax.files.files import open_regular
from loadax.files.opened import count_checks
from loadax.files.remote_ranges import RemoteRanges, Wanted
from loadax.protocols import (
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, read_columns
from loadax.sources.images.crop import Box, OutsideError, RandomCrop
from loadax.sources.images.decode import FAILURES, Rendering, failure_text
from loadax.sources.images.resize import Pixels

_AT_ONCE = 1024  # images per batch of checks


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
        self,
        folder: str,
        classes: Sequence[str],
        names: Sequence[Sequence[str]],
        sizes: Sequence[int] | None = None,
    ):
        self.folder = folder
        if sizes is None:
            self.sizes = None
        else:
            self.sizes = np.array(sizes, np.int64)
        self.classes = tuple(classes)
        encoded = [os.fsencode(name) for class_names in names for name in class_names]
        self._text = b"".join(encoded)
        self._bounds = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        # of the rows of each class
        self._ends = np.cumsum(
            [len(class_names) for class_names in names], dtype=np.int64
        )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def labels(self, rows: Integers) -> NDArray[np.int32]:
        """Class numbers of rows, int32[n]."""
        return np.searchsorted(self._ends, rows, side="right").astype(np.int32)

    def path(self, row: int) -> str:
        """Path or URL of a file."""
        return self.paths(np.array([row]))[0]

    def paths(self, rows: Integers) -> list[str]:
        """Paths or URLs of the files of rows."""
        found = []
        for label, begin, end in zip(
            self.labels(rows).tolist(),
            self._bounds[rows].tolist(),
            self._bounds[rows + 1].tolist(),
            strict=True,
        ):
            parts = (self.classes[label], os.fsdecode(self._text[begin:end]))
            if self.sizes is not None:
                found.append(self.folder + quote("/".join(filter(None, parts))))
            else:
                found.append(os.path.join(self.folder, *parts))  # noqa: PTH118 - a Path is ten times slower
        return found


@final
class ImageSource(BaseSource):
    """Row i: file i, as `{"image": uint8[height, width, 3], "label": int32[]}`.

    With a random crop, which depends on the epoch, an image is the bytes of its file, for `Dataset.decode_images`.

    Args:
        files: Files of the rows.
        rendering: Decoder. If it has no size, the images must be as large as the first, or a map must resize them.
    """

    spec: Tree = None

    def __init__(self, files: ImageFiles, rendering: Rendering):
        self._files = files
        self._rendering = rendering
        self._remote = RemoteRanges()
        self._encoded = isinstance(rendering.crop, RandomCrop)
        if self._encoded:
            image_spec = ArraySpec((), np.dtype(object))
        else:
            if rendering.output_size is None and files.sizes is not None:
                count_checks(1)  # the first image
            size = rendering.output_size or self._first_size()
            image_spec = ArraySpec((*size, 3), np.dtype(np.uint8))
        self.traits = Traits(
            owns_memory=True,
            reads_columns=True,
            # then each image has a size of its own
            reads_examples=rendering.output_size is None,
            # they wait for the network
            concurrent_reads=1 if files.sizes is None else 4,
            attributes={"label": {"classes": list(files.classes)}}
            if files.classes != ("",)
            else {},
        )
        self.spec = {
            "image": image_spec,
            "label": ArraySpec((), np.dtype(np.int32)),
        }

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: `classes[label]`."""
        return self._files.classes

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        if self._encoded:
            size = "encoded"
        else:
            height, width, _ = self.spec["image"].shape
            size = f"{height}x{width}"
        if self.classes != ("",):
            classes = f" of {len(self.classes)} classes"
        else:
            classes = ""
        return f"{size} images{classes} in {self._files.folder}"

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Reads into `out`; see `Source`. Images that are not requested are not decoded."""
        rows = check_rows(rows, len(self))
        images, labels = out
        if labels is not None:
            labels[...] = self._files.labels(rows)
        if images is None:
            return
        if self._encoded:
            images[:] = list(self._contents(rows))
            return
        assert boxes[0] is not None
        cut = tuple(slice(*box) for box in boxes[0])
        for target, image in zip(images, self._checked(rows), strict=True):
            target[...] = image[cut]

    @property
    def addresses(self) -> list[str]:
        return [self._files.folder]

    def some_files(self, most: int) -> list[str]:
        if self._files.sizes is not None:
            return []  # none is local
        rows = np.linspace(0, len(self) - 1, min(most, len(self))).astype(np.int64)
        return [self._files.path(row) for row in rows.tolist()]

    def read_examples(self, visits: Visits) -> list[Tree]:
        """Reads the examples one by one, each image with its own size if the rendering has none."""
        rows = check_rows(visits.rows, len(self))
        if self._encoded:
            encoded = zip(self._contents(rows), self._files.labels(rows), strict=True)
            return [{"image": content, "label": label} for content, label in encoded]
        if self.traits.reads_examples:
            images = self._images(rows)
        else:
            images = self._checked(rows)
        labelled = zip(images, self._files.labels(rows), strict=True)
        # Pillow's pixels are read-only.
        return [
            {"image": np.require(image, requirements="W"), "label": label}
            for image, label in labelled
        ]

    def locate(self, row: int) -> list[Location]:
        return [Location(self._files.path(int(check_rows([row], len(self))[0])))]

    def wanted(self, visits: Visits) -> list[Wanted]:
        sizes = self._files.sizes
        if sizes is None:
            return []
        rows = check_rows(visits.rows, len(self))
        return [Wanted(self._remote, self._ranges(rows[sizes[rows] > 0], sizes))]

    def damaged(self) -> dict[int, str]:
        """Decodes all images, on all cores; returns the rows that can't be read, with file and reason."""
        reasons: dict[int, str] = {}

        crop = self._rendering.crop
        # what is read may end before the damage
        whole = replace(self._rendering, size=None, crop=None)
        checks_parts = self._rendering.output_size is None or isinstance(crop, Box)

        def look(row: int) -> None:
            rows = np.array([row])
            try:
                if crop is not None or self._rendering.size is not None:
                    list(self._images(rows, whole))
                if checks_parts:
                    list(self._checked(rows))
            except SourceError as error:
                reasons[row] = f"{self._files.path(row)}: {error.__cause__ or error}"

        with thread_pool(os.cpu_count() or 1, "loadax-verify") as pool:
            # In batches: there may be millions, and each queued task takes memory.
            for start in range(0, len(self), _AT_ONCE):
                list(pool.map(look, range(start, min(start + _AT_ONCE, len(self)))))
        return dict(sorted(reasons.items()))

    def _first_size(self) -> tuple[int, ...]:
        try:
            (image,) = self._images(np.zeros(1, np.int64))
        except SourceError as error:
            error.add_note(
                "loadax: without size=, opening the folder reads the first image for "
                "its size; pass size=(height, width)"
            )
            raise
        return image.shape[:2]

    def _checked(self, rows: Integers) -> Iterator[Pixels]:
        """Yields the images of rows, which must be as large as the spec says."""
        wanted = self.spec["image"].shape
        for row, image in zip(rows.tolist(), self._images(rows), strict=True):
            if image.shape != wanted:
                raise SourceError(
                    f"row {row}, {self._files.path(row)}: the image is "
                    f"{image.shape[0]}x{image.shape[1]} pixels (height x width), but "
                    f"the first, {self._files.path(0)}, is {wanted[0]}x{wanted[1]}; "
                    "pass size=(height, width) to resize all, or crop or resize them "
                    "in a map",
                    argument="size",
                )
            yield image

    def _images(
        self, rows: Integers, rendering: Rendering | None = None
    ) -> Iterator[Pixels]:
        """Yields the images of rows, each with its own size if the rendering has none."""
        rendering = rendering or self._rendering
        for row, content in zip(rows.tolist(), self._contents(rows), strict=True):
            try:
                yield rendering(content)
            except FAILURES as error:
                if isinstance(error, OutsideError):
                    remedy = "or leave it out"
                else:
                    remedy = "copy the file again, or leave it out"
                raise SourceError(
                    f"row {row}, {self._files.path(row)}: it {failure_text(error)}; "
                    f"{remedy}: dataset.exclude([{row}]); dataset.source.damaged() "
                    "finds all such rows (of a JPEG, damaged='accept' takes what can "
                    "be decoded)"
                ) from error

    def _contents(self, rows: Integers) -> Iterable[bytes]:
        sizes = self._files.sizes
        if sizes is None:
            return map(self._content, rows.tolist(), self._files.paths(rows))
        # All requests at once.
        ranges = self._ranges(rows, sizes)
        # they were listed
        known = {each.location for each in ranges}
        return self._remote.read(ranges, known)[0]

    def _ranges(self, rows: Integers, sizes: Integers) -> list[ByteRange]:
        paths = self._files.paths(rows)
        return [
            ByteRange(path, 0, size)
            for path, size in zip(paths, sizes[rows].tolist(), strict=True)
        ]

    def _content(self, row: int, path: str) -> bytes:
        try:
            with os.fdopen(open_regular(path), "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise SourceError(
                f"row {row}, {path}: it can't be read: {error.strerror}; open the "
                "folder again to list its files"
            ) from error
