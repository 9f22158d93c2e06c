"""Ends of the names of files with tables, by kind."""

from collections.abc import Iterable

COMPRESSED = (".gz", ".zst")
"""Ends of the names of compressed files."""

PARQUET = (".parquet", ".pq")
JSONL = tuple(end + more for end in (".jsonl", ".ndjson") for more in ("", *COMPRESSED))
CSV = tuple(end + more for end in (".csv", ".tsv") for more in ("", *COMPRESSED))


def kind_of(names: Iterable[str]) -> str | None:
    """The function of loadax that opens files with these names; None: no name is that of a table."""
    shown = [name.lower() for name in names if not name.startswith((".", "_"))]
    for function, endings in (("from_parquet", PARQUET), ("from_jsonl", JSONL), ("from_csv", CSV)):
        if any(name.endswith(endings) for name in shown):
            return function
    return None
