"""The record of ArrayRecord files."""

from loadax.sources.format import Format

FORMAT = Format(
    "from_array_record",
    "an ArrayRecord file",
    "array_?record",
    opener="loadax.sources.array_record.record_source:open_array_record",
    lacks="file with array_record in its name",
    requires={"array-record": "array_record.python.array_record_module"},
    options=("dtype", "pad_to"),
)
