"""The record of Parquet files."""

from loadax.files import magic
from loadax.sources.format import Format

FORMAT = Format(
    "from_parquet",
    "a Parquet file",
    r"(?i)\.(parquet|pq)$",
    magic.PARQUET,
    "loadax.sources.tables.parquet.open:open_parquet",
    lacks=".parquet file",
    requires={"pyarrow": "pyarrow"},
    extra="parquet",
    lists=True,
    options=("columns", "cache"),
)
