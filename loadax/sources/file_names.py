"""Which file names belong to which kind of data."""

from collections.abc import Callable, Iterable
from types import MappingProxyType

from loadax.sources.io.neighbours import is_companion, is_hidden

_COMPRESSED = ("", ".gz", ".bz2", ".xz", ".zst")
_PARQUET = (".parquet", ".pq")
_JSONL = tuple(end + more for end in (".jsonl", ".ndjson") for more in _COMPRESSED)
_CSV = tuple(end + more for end in (".csv", ".tsv") for more in _COMPRESSED)


def is_parquet(name: str) -> bool:
    """Whether a name is that of a Parquet file."""
    return name.lower().endswith(_PARQUET)


def is_jsonl(name: str) -> bool:
    """Whether a name is that of a file of JSON lines."""
    return name.lower().endswith(_JSONL)


def is_csv(name: str) -> bool:
    """Whether a name is that of a CSV file."""
    return name.lower().endswith(_CSV)


def is_tfrecord(name: str) -> bool:
    """Whether a name is that of a TFRecord file, such as `train.tfrecord-00000-of-00008` or Kaggle's `0.tfrec`."""
    return ".tfrec" in name and not is_companion(name)


def is_array_record(name: str) -> bool:
    """Whether a name is that of an ArrayRecord file, such as `train.array_record-00000-of-00008`."""
    return ("array_record" in name or "arrayrecord" in name) and not is_companion(name)


def is_tar(name: str) -> bool:
    """Whether a name is that of a tar file."""
    return name.endswith(".tar")


TABLES = MappingProxyType({"from_parquet": is_parquet, "from_jsonl": is_jsonl, "from_csv": is_csv})
"""Predicate on the names of the files of each kind of tables, by the function of loadax that opens them."""

RECORDS: tuple[Callable[[str], bool], ...] = (is_tar, is_tfrecord, is_array_record)
"""Predicates on the names of files of records."""


def table_function(names: Iterable[str]) -> str | None:
    """The function of loadax that opens files with these names; None: no name is that of a table."""
    shown = [name for name in names if not is_hidden(name)]
    return next((function for function, is_one in TABLES.items() if any(map(is_one, shown))), None)
