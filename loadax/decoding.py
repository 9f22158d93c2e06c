"""Decode: a transform that decodes a leaf of encoded images straight into the array of the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np

from loadax.core.arguments import text
from loadax.core.leaf_names import Path, path_of, unknown_leaf, value_at, with_value
from loadax.core.spec import array_or_object, spec_of, spec_or_object, stack
from loadax.core.tree import flatten
from loadax.errors import LeafError, SourceError
from loadax.protocols import ArraySpec, Tree, Visits
from loadax.seeds import row_generator
from loadax.sources.images.crop import Box, RandomCrop
from loadax.sources.images.decode import FAILURES, Rendering, failure_text
from loadax.sources.images.folder import open_rendering
from loadax.sources.images.resize import Pixels
from loadax.transforms import DEFAULT_SEED, Stream, checked_seed

_BYTE = np.dtype(np.uint8)
# Stands for the image while the other leaves are stacked.
_NOTHING = np.zeros((), _BYTE)


@final
@dataclass(frozen=True, repr=False)
class Decoding:
    """Arguments of `Decode`, by which fingerprints and messages know it.

    Args:
        leaf: Name of the leaf; None: the example itself.
        rendering: Decoder.
    """

    leaf: str | None
    rendering: Rendering

    def __repr__(self) -> str:
        size = self.rendering.size
        crop = self.rendering.crop
        given = {
            "": self.leaf,
            "size=": size,
            "crop=": tuple(crop) if isinstance(crop, Box) else crop,
        }
        texts = (
            f"{name}{value!r}" for name, value in given.items() if value is not None
        )
        return f"decode_images({', '.join(texts)})"


@final
@dataclass(frozen=True)
class Decode:
    """Decodes the images of a leaf, a row at a time. Other leaves stay as they are.

    Args:
        function: Its arguments, a `Decoding`, where other transforms have their function.
        seed: Seed of the generators of random crops.
        place: Index of this transform in the chain of maps.
        stream: In place of `seed`, the stream of random numbers if no seed was given.
    """

    function: Any
    seed: int
    place: int
    stream: Stream | None = None
    kind: ClassVar[Literal["decode"]] = "decode"
    spec = None
    elementwise = with_index = with_epoch = False

    @property
    def rng(self) -> bool:
        """Whether crops are random."""
        return isinstance(self.function.rendering.crop, RandomCrop)

    @property
    def _generator_seed(self) -> int:
        if self.stream is None:
            return self.seed
        return self.stream.seed

    def pads_empty_list(self, example: Tree) -> bool:  # noqa: ARG002
        """Whether a leaf to pad is an empty list: it pads none."""
        return False

    def spec_of(self, example: Tree, row: int, stacked: bool) -> Tree:
        """The spec of an example after decoding."""
        visits = Visits(np.full(1, row), np.zeros(1, np.int64))
        (decoded,) = self.results([example], visits, None, [row])
        if stacked:
            return spec_of(decoded)
        return spec_or_object(decoded)

    def spec_of_tree(self, spec: Tree) -> Tree | None:
        """The spec of decoded examples from that of encoded ones; None: it depends on the images."""
        size = self.function.rendering.output_size
        path = self._path(spec)
        if size is None or path is None:
            return None
        return with_value(spec, path, ArraySpec((*size, 3), _BYTE))

    def __call__(
        self, examples: list[Tree], visits: Visits, spec: Tree, names: Sequence[Any]
    ) -> Tree:
        """Decodes and stacks examples; each leaf of the result has the shape of `spec` after the dimension of rows.

        Raises:
            LeafError: When an image has another size, or the leaf is missing or not encoded; names the row.
            SourceError: When an image can't be decoded; names the row.
        """
        path = self._path(spec) or ()
        image_spec = value_at(spec, path)
        images = np.empty((len(examples), *image_spec.shape), _BYTE)
        others = []
        for index, example in enumerate(examples):
            its_path, pixels = self._decoded(example, visits, names, index)
            if pixels.shape != image_spec.shape:
                raise LeafError(
                    f"row {names[index]}: {self._named} is "
                    f"{pixels.shape[0]}x{pixels.shape[1]} pixels (height x width), but "
                    f"the first is {image_spec.shape[0]}x{image_spec.shape[1]}; pass "
                    "size=(height, width) to decode_images, or crop or resize them in "
                    "a map"
                )
            images[index] = pixels
            others.append(with_value(example, its_path, _NOTHING))
        rest = with_value(spec, path, ArraySpec((), _BYTE))
        return with_value(stack(others, rest, names), path, images)

    def results(
        self,
        examples: list[Tree],
        visits: Visits,
        spec: Tree,  # noqa: ARG002
        names: Sequence[Any],
    ) -> list[Tree]:
        """Decodes examples, whose images and other leaves may differ from row to row.

        Raises:
            LeafError: When the leaf is missing, or not encoded; names the row.
            SourceError: When an image can't be decoded; names the row.
        """
        decoded = []
        for index, example in enumerate(examples):
            path, pixels = self._decoded(example, visits, names, index)
            decoded.append(
                with_value(example, path, np.require(pixels, requirements="W"))
            )
        return decoded

    def _decoded(
        self, example: Tree, visits: Visits, names: Sequence[Any], index: int
    ) -> tuple[Path, Pixels]:
        """The place of the image in an example, and its pixels."""
        path = self._path(example)
        if path is None:
            known = flatten(example)[1].names
            raise LeafError(
                f"decode_images, row {names[index]}: "
                f"{unknown_leaf(self.function.leaf, known)}"
            )
        content = _content(value_at(example, path))
        if content is None:
            found = array_or_object(value_at(example, path))
            raise LeafError(
                f"row {names[index]}: {self._named} is {found.dtype}"
                f"{list(found.shape)}, not the bytes of an image; name a leaf of "
                "bytes, or leave decode_images out for one of pixels"
            )
        rng = None
        if self.rng:
            epoch = int(visits.epochs[index])
            row = int(visits.rows[index])
            rng = row_generator(self._generator_seed, self.place, epoch, row)
        try:
            return path, self.function.rendering(content, rng)
        except FAILURES as error:
            raise SourceError(
                f"row {names[index]}: {self._named} {failure_text(error)}; leave the "
                f"row out: dataset.exclude([{int(visits.rows[index])}])"
            ) from error

    def _path(self, tree: Tree) -> Path | None:
        if self.function.leaf is None:
            return ()
        return path_of(tree, self.function.leaf)

    @property
    def _named(self) -> str:
        if self.function.leaf is None:
            return "the example"
        return f"leaf {self.function.leaf!r}"

    def describe(self) -> list[Any]:
        seed = self._generator_seed if self.rng else None
        return ["decode_images", self.function.leaf, self.rng, seed]

    def text(self) -> str:
        return repr(self.function)


def _content(value: Any) -> bytes | None:
    """Bytes of an encoded image; None: it is something else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    # as Hugging Face stores images: bytes and path
    if isinstance(value, Mapping) and "bytes" in value:
        return _content(value["bytes"])
    if isinstance(value, np.ndarray) and not value.ndim:
        return _content(value.item())
    if isinstance(value, np.ndarray) and value.dtype == _BYTE and value.ndim == 1:
        return value.tobytes()
    return None


def decode(leaf: Any, images: tuple[Any, ...], place: int) -> Decode:
    """Makes the transform of `Dataset.decode_images`.

    Args:
        leaf: Name of the leaf; None: the example itself.
        images: Size, fit, quality, damaged and crop.
        place: Index of the transform in the chain of maps.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When a decoder is not installed.
    """
    if leaf is not None:
        leaf = text("leaf", leaf, "the name of a leaf of encoded images")
    rendering = open_rendering(*images)
    if isinstance(rendering.crop, RandomCrop):
        seed = rendering.crop.seed
        number, stream = checked_seed(
            DEFAULT_SEED if seed is None else seed, rng=True
        )
    else:
        number, stream = 0, None
    return Decode(Decoding(leaf, rendering), number, place, stream)
