"""The first bytes of files, as regular expressions. They tell whether the records of the formats have to be read."""

import re

NPY = b"\x93NUMPY"
PARQUET = b"PAR1"
TAR = rb"(?s:.{257}ustar)"
JSONL = rb'\s*\{[ \t]*("[^\n]*":[^\n]*(\}[ \t\r]*(\n|\Z)|\Z)|\}[ \t\r]*(\n|\Z))'
HDF5 = rb"\x89HDF\r\n\x1a\n"
ARROW = rb"ARROW1|FEA1"
ARROW_STREAM = rb"\xff{4}"
HUGGINGFACE = rb"\xff{4}(?s:.*)huggingface"
REFERENCES = (
    rb'\s*\{(?s:.*)"([^"]*/)?(\.z(group|array|attrs|metadata)|zarr\.json)"\s*:'
)

# Those of every record of `loadax.sources.formats`.
ALL = (NPY, PARQUET, TAR, JSONL, HDF5, ARROW, ARROW_STREAM, HUGGINGFACE, REFERENCES)


def is_magic(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a format that has such bytes."""
    return any(re.match(magic, head) for magic in ALL)
