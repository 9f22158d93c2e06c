"""Ends of the names of files with tables, by kind."""

from collections.abc import Iterable

from loadax.sources.io.expand import file_name

_CODECS = {".gz": "gzip", ".zst": "zstd"}
PARQUET = (".parquet", ".pq")
JSONL = tuple(end + more for end in (".jsonl", ".ndjson") for more in ("", *_CODECS))
CSV = tuple(end + more for end in (".csv", ".tsv") for more in ("", *_CODECS))


def kind_of(names: Iterable[str]) -> str | None:
    """The function of loadax that opens files with these names; None: no name is that of a table."""
    shown = [name.lower() for name in names if not name.startswith((".", "_"))]
    for function, endings in (("from_parquet", PARQUET), ("from_jsonl", JSONL), ("from_csv", CSV)):
        if any(name.endswith(endings) for name in shown):
            return function
    return None


def compression(location: str) -> str | None:
    """Arrow's name of the codec of the file at a path or URL; None: it is not compressed."""
    name = file_name(location).lower()
    return next((codec for end, codec in _CODECS.items() if name.endswith(end)), None)
