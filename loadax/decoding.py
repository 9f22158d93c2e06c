"""Decode: a transform that decodes a leaf of encoded files straight into the array of the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.arguments import text
from loadax.core.leaf_names import Path, path_of, unknown_leaf, value_at, with_value
from loadax.core.spec import array_or_object, spec_of, spec_or_object, stack
from loadax.core.tree import flatten
from loadax.errors import LeafError, SourceError
from loadax.protocols import ArraySpec, Tree, Visits
from loadax.seeds import row_generator
from loadax.transforms import DEFAULT_SEED, Stream, checked_seed

_BYTE = np.dtype(np.uint8)
# Stands for the decoded file while the other leaves are stacked.
_NOTHING = np.zeros((), _BYTE)


class BytesDecoder(Protocol):
    """Decodes the bytes of one file to an array. The members that `Decode` needs."""

    @property
    def verb(self) -> str:
        """Name of the verb of `Dataset`."""

    @property
    def noun(self) -> str:
        """Noun of a file, such as "an image"."""

    @property
    def made_of(self) -> str:
        """Noun of what is decoded, such as "pixels"."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Exceptions that damaged files cause."""

    @property
    def spec(self) -> ArraySpec | None:
        """Spec of the arrays; None: it depends on the file."""

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""

    @property
    def seed(self) -> Any:
        """Seed of these; None: it is not given."""

    def arguments(self) -> Mapping[str, Any]:
        """Arguments to show; None: left out."""

    def __call__(
        self, content: bytes, rng: np.random.Generator | None
    ) -> NDArray[Any]:
        """Decodes a file."""

    def failure_text(self, error: Exception) -> str:
        """Tells which of `failures` a file has, after its name."""

    def unequal(self, found: tuple[int, ...], first: tuple[int, ...]) -> str:
        """Tells that an array has another shape than the first one, after its name."""


@final
@dataclass(frozen=True, repr=False)
class Decoding:
    """Arguments of `Decode`, by which fingerprints and messages know it.

    Args:
        leaf: Name of the leaf; None: the example itself.
        decoder: Decoder of the files.
    """

    leaf: str | None
    decoder: BytesDecoder

    def __repr__(self) -> str:
        texts = [
            f"{name}={value!r}"
            for name, value in self.decoder.arguments().items()
            if value is not None
        ]
        if self.leaf is not None:
            texts.insert(0, repr(self.leaf))
        return f"{self.decoder.verb}({', '.join(texts)})"


@final
@dataclass(frozen=True)
class Decode:
    """Decodes the files of a leaf, a row at a time. Other leaves stay as they are.

    Args:
        function: Its arguments, a `Decoding`, where other transforms have their function.
        seed: Seed of the generators of random crops and clips.
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
        """Whether it draws crops or clips."""
        return bool(self._decoder.is_random)

    @property
    def _decoder(self) -> BytesDecoder:
        decoder: BytesDecoder = self.function.decoder
        return decoder

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
        """The spec of decoded examples from that of encoded ones; None: it depends on the files."""
        decoded = self._decoder.spec
        path = self._path(spec)
        if decoded is None or path is None:
            return None
        return with_value(spec, path, decoded)

    def __call__(
        self, examples: list[Tree], visits: Visits, spec: Tree, names: Sequence[Any]
    ) -> Tree:
        """Decodes and stacks examples; each leaf of the result has the shape of `spec` after the dimension of rows.

        Raises:
            LeafError: When an array has another shape, or the leaf is missing or not encoded; names the row.
            SourceError: When a file can't be decoded; names the row.
        """
        path = self._path(spec) or ()
        decoded_spec = value_at(spec, path)
        decoded = np.empty((len(examples), *decoded_spec.shape), decoded_spec.dtype)
        others = []
        for index, example in enumerate(examples):
            its_path, array = self._decoded(example, visits, names, index)
            if array.shape != decoded_spec.shape:
                raise LeafError(
                    f"row {names[index]}: {self._named} "
                    f"{self._decoder.unequal(array.shape, decoded_spec.shape)}"
                )
            decoded[index] = array
            others.append(with_value(example, its_path, _NOTHING))
        rest = with_value(spec, path, ArraySpec((), _BYTE))
        return with_value(stack(others, rest, names), path, decoded)

    def results(
        self,
        examples: list[Tree],
        visits: Visits,
        spec: Tree,  # noqa: ARG002
        names: Sequence[Any],
    ) -> list[Tree]:
        """Decodes examples, whose arrays and other leaves may differ from row to row.

        Raises:
            LeafError: When the leaf is missing, or not encoded; names the row.
            SourceError: When a file can't be decoded; names the row.
        """
        decoded = []
        for index, example in enumerate(examples):
            path, array = self._decoded(example, visits, names, index)
            decoded.append(
                with_value(example, path, np.require(array, requirements="W"))
            )
        return decoded

    def _decoded(
        self, example: Tree, visits: Visits, names: Sequence[Any], index: int
    ) -> tuple[Path, NDArray[Any]]:
        """The place of the file in an example, and its array."""
        decoder = self._decoder
        path = self._path(example)
        if path is None:
            known = flatten(example)[1].names
            raise LeafError(
                f"{decoder.verb}, row {names[index]}: "
                f"{unknown_leaf(self.function.leaf, known)}"
            )
        value = value_at(example, path)
        content = _content(value)
        if content is None and _is_missing(value):
            raise SourceError(
                f"row {names[index]}: {self._named} has no bytes (None); leave the row "
                f"out: dataset.exclude([{int(visits.rows[index])}])"
            )
        if content is None:
            found = array_or_object(value)
            raise LeafError(
                f"row {names[index]}: {self._named} is {found.dtype}"
                f"{list(found.shape)}, not the bytes of {decoder.noun}; name a leaf "
                f"of bytes, or leave {decoder.verb} out for one of {decoder.made_of}"
            )
        rng = None
        if self.rng:
            epoch = int(visits.epochs[index])
            row = int(visits.rows[index])
            rng = row_generator(self._generator_seed, self.place, epoch, row)
        try:
            return path, decoder(content, rng)
        except decoder.failures as error:
            raise SourceError(
                f"row {names[index]}: {self._named} {decoder.failure_text(error)}; leave the "
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
        return [self._decoder.verb, self.function.leaf, self.rng, seed]

    def text(self) -> str:
        return repr(self.function)


def _content(value: Any) -> bytes | None:
    """Bytes of an encoded file; None: it is something else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    # as Hugging Face stores files: bytes and path
    if isinstance(value, Mapping) and "bytes" in value:
        return _content(value["bytes"])
    if isinstance(value, np.ndarray) and not value.ndim:
        return _content(value.item())
    if isinstance(value, np.ndarray) and value.dtype == _BYTE and value.ndim == 1:
        return value.tobytes()
    return None


def _is_missing(value: Any) -> bool:
    """Whether a value stands for a file that is missing: None, also in a dict of bytes and path."""
    if isinstance(value, Mapping):
        return "bytes" in value and _is_missing(value["bytes"])
    if isinstance(value, np.ndarray) and not value.ndim:
        return value.item() is None
    return value is None


def decode(leaf: Any, decoder: BytesDecoder, place: int) -> Decode:
    """Makes the transform of `Dataset.decode_images` and the like.

    Args:
        leaf: Name of the leaf; None: the example itself.
        decoder: Decoder of the files.
        place: Index of the transform in the chain of maps.

    Raises:
        ArgumentError: When the leaf or the seed is invalid; shows it.
    """
    if leaf is not None:
        leaf = text(
            "leaf", leaf, f"the name of a leaf of the bytes of {decoder.noun}"
        )
    if not decoder.is_random:
        return Decode(Decoding(leaf, decoder), 0, place)
    if decoder.seed is None:
        number, stream = checked_seed(DEFAULT_SEED, rng=True)
    else:
        number, stream = checked_seed(decoder.seed, rng=True)
    return Decode(Decoding(leaf, decoder), number, place, stream)
