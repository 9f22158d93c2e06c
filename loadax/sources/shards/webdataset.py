"""WebDatasetSource: examples of tar files, each a dict of its files by extension, decoded by that."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from loadax.core.arguments import flag
from loadax.core.formatting import count_text
from loadax.core.spec import spec_of
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import files_with_cache
from loadax.files.npy_header import NPY_FAILURES, parse_npy
from loadax.files.remote_ranges import Wanted
from loadax.protocols import (
    ArraySpec,
    Boxes,
    Integers,
    Location,
    Outputs,
    Tree,
    Visits,
)
from loadax.sources.base import BaseSource, Traits, asked_for
from loadax.sources.checks import check_rows
from loadax.sources.expand import expand
from loadax.sources.file_index import index_files
from loadax.sources.format import RecordOptions
from loadax.sources.images.decode import Rendering
from loadax.sources.images.folder import open_rendering
from loadax.sources.images.format import ENDINGS
from loadax.sources.shards.examples import KEY, RECORDS, ExampleRanges, select_columns
from loadax.sources.shards.format import WEBDATASET
from loadax.sources.shards.records import Records, stack_examples

if TYPE_CHECKING:
    from loadax.files.byte_ranges import KnownFiles
    from loadax.files.metadata import Metadata

# Exceptions of decoding damaged files.
FAILURES = (*NPY_FAILURES, UnicodeDecodeError)

OBJECT = np.dtype(object)


class FileDecoder(NamedTuple):
    """Decoder of the files of one extension.

    Args:
        decode: Function from the bytes of a file to the leaf.
        spec: Shape and dtype, if they are equal in all examples; None: they follow from the first example.
    """

    decode: Callable[[memoryview], Any]
    spec: ArraySpec | None


def is_image(extension: str) -> bool:
    """Whether files with this extension (without the dot) are images; "seg.png" is one too."""
    return f".{extension}".endswith(ENDINGS)


def _number(content: memoryview) -> np.int32:
    return np.int32(int(bytes(content)))


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8")


# Gives a file's own bytes.
UNDECODED = FileDecoder(bytes, ArraySpec((), OBJECT))

_BY_EXTENSION = {
    "cls": FileDecoder(_number, ArraySpec((), np.dtype(np.int32))),
    "npy": FileDecoder(parse_npy, None),
    "txt": FileDecoder(_text, ArraySpec((), OBJECT)),
}


def decoder_of(extension: str, rendering: Rendering | None) -> FileDecoder:
    """The usual decoder of files with an extension; their bytes if there is none.

    Args:
        extension: Extension without the dot, in lower case.
        rendering: Decoder of images.
    """
    if not is_image(extension):
        return _BY_EXTENSION.get(extension.rpartition(".")[2], UNDECODED)
    assert rendering is not None
    size = rendering.size
    if size is None:
        spec = None
    else:
        spec = ArraySpec((*size, 3), np.dtype(np.uint8))
    return FileDecoder(lambda content: rendering(bytes(content)), spec)


@final
class WebDatasetSource(BaseSource):
    """Row i: example i of the tar files, as a dict by extension.

    Args:
        records: Reader of the files.
        examples: Byte ranges of the examples.
        decoders: Decoder of each column, by name, in the order of the columns of `examples`.
        keyed: Whether to add the name of each example.
    """

    def __init__(
        self,
        records: Records,
        examples: ExampleRanges,
        decoders: dict[str, FileDecoder],
        keyed: bool,
    ):
        self._records = records
        self._examples = examples
        self._decoders = decoders
        self._keyed = keyed
        self._columns = list(decoders.items())
        # Examples of one form are read straight into a batch, each column by itself.
        alike = not keyed and all(
            each.spec and each.spec.dtype != OBJECT for each in decoders.values()
        )
        self.traits = Traits(
            owns_memory=True,
            reads_columns=alike,
            reads_examples=not alike,
            concurrent_reads=records.concurrent_reads,
        )

    def __len__(self) -> int:
        return len(self._examples.begins)

    def __repr__(self) -> str:
        return (
            f"{count_text(len(self), 'example')} ({', '.join(self._decoders)}) in "
            f"{count_text(len(self.addresses), 'tar file')}"
        )

    @property
    def known_files(self) -> "KnownFiles":
        return self._records.known_files

    @property
    def addresses(self) -> list[str]:
        return self._records.addresses

    @property
    def rows_probed(self) -> int:
        return int(any(each.spec is None for each in self._decoders.values()))

    @cached_property
    def spec(self) -> Tree:
        specs = {name: each.spec for name, each in self._decoders.items()}
        if None in specs.values():
            (first,) = self._read(np.zeros(1, np.int64))
            specs = spec_of(first)
        return {**specs, **({KEY: ArraySpec((), OBJECT)} if self._keyed else {})}

    def wanted(self, visits: Visits) -> list[Wanted]:
        rows = check_rows(visits.rows, len(self))
        return self._records.wanted(
            self._examples.begins[rows].ravel(), self._examples.sizes[rows].ravel()
        )

    def locate(self, row: int) -> list[Location]:
        """File and byte range of each column of an example."""
        index = int(check_rows([row], len(self))[0])
        begins = self._examples.begins[index].tolist()
        sizes = self._examples.sizes[index].tolist()
        located = zip(
            self._decoders, map(self._records.locate, begins, sizes), strict=True
        )
        return [
            location._replace(part=name)
            for name, locations in located
            for location in locations
        ]

    def read(self, rows: Integers) -> Tree:
        """Reads and stacks the examples at `rows`.

        Raises:
            LeafError: When they differ in shape; names the row.
        """
        rows = check_rows(rows, len(self))
        return stack_examples(self._read(rows), self.spec, rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._read(check_rows(visits.rows, len(self)))

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        if not self.traits.reads_columns:
            super().read_into(rows, boxes, out)
            return
        rows = check_rows(rows, len(self))
        asked = asked_for(range(len(self._columns)), boxes, out)
        wanted = [
            (column, target, tuple(slice(*cut) for cut in box))
            for column, box, target in asked
        ]
        contents = iter(self._contents(rows, [column for column, _, _ in wanted]))
        for place, row in enumerate(rows.tolist()):
            for column, target, cut in wanted:
                target[place] = self._decode(next(contents), row, column)[cut]

    def _read(self, rows: Integers) -> list[dict[str, Any]]:
        contents = iter(self._contents(rows, range(len(self._decoders))))
        examples = []
        for row in rows.tolist():
            example = {
                name: self._decode(next(contents), row, column)
                for column, name in enumerate(self._decoders)
            }
            if self._keyed:
                example[KEY] = self._examples.key(row)
            examples.append(example)
        return examples

    def _contents(self, rows: Integers, columns: Sequence[int]) -> list[memoryview]:
        """Bytes of these columns of each example, row by row."""
        chosen = rows[:, None], np.array(columns, np.int64)
        return self._records.read(
            self._examples.begins[chosen].ravel(),
            self._examples.sizes[chosen].ravel(),
        )

    def _decode(self, content: memoryview, row: int, column: int) -> Any:
        name, decoder = self._columns[column]
        try:
            value = decoder.decode(content)
        except FAILURES as error:
            raise SourceError(
                f"{self._name(row, column)}: {name!r} can't be decoded: {error}; "
                f"write the example again, or leave it out: dataset.exclude([{row}])"
            ) from error
        if (
            decoder.spec is not None
            and decoder.spec.shape
            and value.shape != decoder.spec.shape
        ):
            raise SourceError(
                f"{self._name(row, column)}: {name!r} is {value.shape}, not "
                f"{decoder.spec.shape}"
            )
        return value

    def _name(self, row: int, column: int) -> str:
        return (
            f"row {row} "
            f"({self._records.name(int(self._examples.begins[row, column]))}, "
            f"{self._examples.key(row)!r})"
        )


def open_webdataset(
    paths: Any,
    options: RecordOptions,
    columns: Any = None,
    decode: bool = False,
    images: tuple[Any, ...] = (None, "crop", "high", "error"),
    metadata: "Metadata | None" = None,
) -> WebDatasetSource:
    """Opens the examples of tar files; see `loadax.from_webdataset`, whose `size` to `damaged` are `images`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When a decoder of images is not installed, or a member is sparse.
        SourceError: When a file is missing, damaged, or has other columns than the others; names it.
    """
    flag("decode", decode)
    if images[0] is not None and not decode:
        raise ArgumentError(
            f"size={images[0]!r} resizes decoded images; pass decode=True too"
        )
    files = files_with_cache(options.cache, options.cache_bytes, metadata)
    wanted = _columns(columns)
    locations = expand(paths, WEBDATASET, files)
    entries = [index_files(RECORDS, files, locations, options)]
    records = Records(files, locations, options.index)
    names, examples = select_columns(
        entries.pop(), wanted, locations, records.file_begins
    )
    if decode and any(map(is_image, names)):
        rendering = open_rendering(*images)
    else:
        rendering = None
    decoders = {
        name: decoder_of(name, rendering) if decode else UNDECODED for name in names
    }
    return WebDatasetSource(
        records, examples, decoders, keyed=wanted is not None and KEY in wanted
    )


def _columns(columns: Any) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        names = [columns]
    else:
        names = list(columns)
    plain = [name.removeprefix(".") for name in names if isinstance(name, str)]
    if not plain or len(set(plain)) < len(names):
        raise ArgumentError(
            f"columns={columns!r}: pass extensions, each once, such as ['jpg', 'cls']"
        )
    return plain


def command_arguments(_path: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that open tar files on the command line: members are decoded."""
    return {**given, "decode": True}
