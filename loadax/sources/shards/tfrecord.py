"""TFRecordSource: records of TFRecord files, as bytes or as parsed `tf.train.Example`s."""

import struct
from array import array
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from loadax.core.formatting import count_text, some
from loadax.core.spec import spec_of
from loadax.errors import ArgumentError, SourceError
from loadax.files.byte_ranges import ByteRange, KnownFiles
from loadax.files.compression import compression_of
from loadax.files.files import Files, files_with_cache
from loadax.files.remote_ranges import Wanted
from loadax.kept.index_folder import Entry
from loadax.protocols import ArraySpec, Integers, Location, Tree, Visits
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows
from loadax.sources.expand import expand
from loadax.sources.file_index import (
    RecordFormat,
    Scan,
    check_records,
    index_files,
    merge_records,
    record_entry,
)
from loadax.sources.format import RecordOptions
from loadax.sources.shards.crc import masked_crc32c
from loadax.sources.shards.example_message import (
    Feature,
    example_class,
    features_like,
    features_of,
    parse_example,
)
from loadax.sources.shards.format import TFRECORD
from loadax.sources.shards.records import Records, objects, stack_examples

if TYPE_CHECKING:
    from loadax.files.metadata import Metadata

_HEADER = struct.Struct("<QI")
_ZLIB = 0x78  # first byte of what zlib compressed; the first two are a multiple of 31
_CRC = 4
_BATCH = 4096  # records that are found at a time


@final
class TFRecordSource(BaseSource):
    """Row i: record i of the files.

    Args:
        records: Reader of the files.
        begins: First byte of the content of each record, in the concatenation of all files: int64[n].
        sizes: Size of each record in bytes, int64[n].
        features: Features to parse, by name; None: rows are the bytes of the records.
    """

    def __init__(
        self,
        records: Records,
        begins: Integers,
        sizes: Integers,
        features: dict[str, Feature] | None,
    ):
        self._records = records
        self._begins = begins
        self._sizes = sizes
        self._features = features
        self.traits = Traits(
            owns_memory=True,
            reads_examples=True,
            concurrent_reads=records.concurrent_reads,
        )

    def __len__(self) -> int:
        return len(self._begins)

    def __repr__(self) -> str:
        return (
            f"{count_text(len(self), 'record')} in "
            f"{count_text(len(self.addresses), 'TFRecord file')}"
        )

    @cached_property
    def spec(self) -> Tree:
        if self._features is None:
            return ArraySpec((), np.dtype(object))
        if self.rows_probed:
            return spec_of(self._read(np.zeros(1, np.int64))[0])
        return {name: feature.spec for name, feature in self._features.items()}

    @property
    def rows_probed(self) -> int:
        return int(any(feature.ragged for feature in (self._features or {}).values()))

    @property
    def known_files(self) -> KnownFiles:
        return self._records.known_files

    @property
    def addresses(self) -> list[str]:
        return self._records.addresses

    def wanted(self, visits: Visits) -> list[Wanted]:
        rows = check_rows(visits.rows, len(self))
        return self._records.wanted(self._begins[rows], self._sizes[rows] + _CRC)

    def locate(self, row: int) -> list[Location]:
        """File of a record, and the bytes of its content."""
        index = int(check_rows([row], len(self))[0])
        return self._records.locate(int(self._begins[index]), int(self._sizes[index]))

    def read(self, rows: Integers) -> Tree:
        """Reads the records at `rows`, stacked.

        Raises:
            LeafError: When a feature has another number of values than it should; names the row.
        """
        rows = check_rows(rows, len(self))
        examples = self._read(rows)
        if self._features is None:
            return objects(examples)
        return stack_examples(examples, self.spec, rows)

    def read_examples(self, visits: Visits) -> list[Tree]:
        return self._read(check_rows(visits.rows, len(self)))

    def _read(self, rows: Integers) -> list[Any]:
        contents = self._records.read(self._begins[rows], self._sizes[rows] + _CRC)
        return [
            self._decode(content, row)
            for content, row in zip(contents, rows.tolist(), strict=True)
        ]

    def _decode(self, content: memoryview, row: int) -> Any:
        record = bytes(content[:-_CRC])
        if masked_crc32c(record) != int.from_bytes(content[-_CRC:], "little"):
            raise SourceError(
                f"{self._name(row)}: the record is damaged: its checksum is wrong; "
                "copy the file again, or leave the record out: "
                f"dataset.exclude([{row}])"
            )
        if self._features is None:
            return record
        try:
            parsed = parse_example(record)
        except ValueError as error:
            raise SourceError(
                f"{self._name(row)}: the record is not a tf.train.Example: {error}; "
                "leave features= out, and decode its bytes in a map"
            ) from error
        return {
            name: feature.value(parsed, name, lambda: self._name(row))
            for name, feature in self._features.items()
        }

    def _name(self, row: int) -> str:
        return f"row {row} ({self._records.name(int(self._begins[row]))})"


def open_tfrecord(
    paths: Any,
    options: RecordOptions,
    features: Any = None,
    metadata: "Metadata | None" = None,
) -> TFRecordSource:
    """Opens TFRecord files; see `loadax.from_tfrecord`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When a file is missing, damaged, compressed or has no records; names it.
        UnsupportedError: When google-crc32c, or protobuf for `features`, is not installed.
    """
    if features is None:
        parsed = None
    else:
        parsed = features_of(features)
    if parsed is not None:
        example_class()
    files = files_with_cache(options.cache, options.cache_bytes, metadata)
    locations = expand(paths, TFRECORD, files)
    entry = index_files(RECORDS, files, locations, options)
    counts, begins, sizes = (
        entry.arrays[name] for name in ("records", "begins", "sizes")
    )
    if not len(begins):
        raise SourceError(
            f"{some(locations, 1)} has no records; was its writer closed too early? "
            "Write it again"
        )
    records = Records(files, locations, options.index)
    return TFRecordSource(
        records, begins + np.repeat(records.file_begins, counts), sizes, parsed
    )


def features_in(paths: Any) -> dict[str, Any]:
    """The `features=` of the first record, without reading the others; empty if it is not a `tf.train.Example`.

    Raises:
        SourceError: When a file is missing or can't be read; names it.
    """
    files = Files()
    locations = expand(paths, TFRECORD, files)
    filled = [
        location
        for location, size in zip(locations, files.sizes(locations), strict=True)
        if size
    ]
    for location in filled[:1]:
        (header,) = files.read_starts([location], _HEADER.size)
        stop = _HEADER.size + int.from_bytes(header[:8], "little")
        # else it is not a TFRecord file, as opening it will say
        if stop <= files.sizes([location])[0]:
            (content,) = files.read([ByteRange(location, _HEADER.size, stop)])
            with suppress(ValueError):
                return features_like(parse_example(content))
    return {}


def _scan(location: str, size: int) -> Scan[Entry]:
    """Finds the records of a file: size and its checksum, content, checksum of the content."""
    begins = array("q")
    sizes = array("q")
    at = 0
    while at < size:
        view = yield at, at + _HEADER.size
        first = at
        for _ in range(_BATCH):
            header = bytes(view[at - first : at - first + _HEADER.size])
            if at == size or (
                len(header) < _HEADER.size and first + len(view) < size
            ):
                break
            if len(header) == _HEADER.size:
                length, crc = _HEADER.unpack(header)
            else:
                length, crc = (0, -1)
            if crc >= 0 and masked_crc32c(header[:8]) != crc:
                raise _damaged(
                    location,
                    f"record {len(begins)} at byte {at}" if at else "",
                    header,
                )
            end = at + _HEADER.size + length + _CRC
            if crc < 0 or end > size:
                record = f"record {len(begins)} at byte {at}"
                raise SourceError(
                    f"{location}: the file is cut short at byte {size}, in {record}; "
                    "copy it again"
                )
            begins.append(at + _HEADER.size)
            sizes.append(length)
            at = end
    return record_entry("records", begins, sizes)


def _damaged(location: str, record: str, header: bytes) -> SourceError:
    """Error for a size whose checksum is wrong; `record` is empty at the first byte of the file."""
    if record:
        return SourceError(
            f"{location}: {record} is damaged: the checksum of its size is wrong; "
            "copy it again"
        )
    zlib = header[0] == _ZLIB and int.from_bytes(header[:2]) % 31 == 0
    if codec := "zlib" if zlib else compression_of(header):
        return SourceError(
            f"{location} is compressed by {codec}, so that no record can be read "
            "without those before it; write it without compression"
        )
    return SourceError(
        f"{location} is not a TFRecord file: it begins with {header[:8]!r}"
    )


# The format of TFRecord files.
RECORDS = RecordFormat(
    "from_tfrecord",
    "tfrecord 1",
    _scan,
    merge_records,
    partial(check_records, counts="records", after=_CRC),
)


def command_arguments(source: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that open a TFRecord file: features as in the first record, if that is a `tf.train.Example`.

    Raises:
        ArgumentError: When the first record lacks a feature.
    """
    chosen = given.pop("features", ())
    found = features_in(source)
    absent = sorted(set(chosen) - set(found))
    if absent:
        if found:
            has = f"but {some(found)}; pass these"
        else:
            has = "since it is not a tf.train.Example; leave --columns out"
        raise ArgumentError(
            f"--columns: the first record of {source} has no feature {absent[0]!r}, "
            f"{has}"
        )
    if found:
        return {**given, "features": {name: found[name] for name in chosen or found}}
    return given
