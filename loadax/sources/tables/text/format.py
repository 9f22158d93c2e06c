"""The records of JSON lines and CSV files."""

from loadax.files import magic
from loadax.sources.format import Format

_PACKED = r"(\.(gz|bz2|xz|zst))?$"
JSONL = Format(
    "from_jsonl",
    "a file of JSON lines",
    rf"(?i)\.(jsonl|ndjson){_PACKED}",
    magic.JSONL,
    "loadax.sources.tables.text.jsonl:open_jsonl",
    lacks=".jsonl file",
    requires={"pyarrow": "pyarrow"},
    extra="parquet",
    lists=True,
    options=("columns", "cache"),
)
CSV = Format(
    "from_csv",
    "a CSV file",
    rf"(?i)\.(csv|tsv){_PACKED}",
    opener="loadax.sources.tables.text.csv:open_csv",
    lacks=".csv file",
    requires={"pyarrow": "pyarrow"},
    extra="parquet",
    any_bytes=True,
    lists=True,
    metadata=False,
    options=("columns",),
)
