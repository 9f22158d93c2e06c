"""The record of files of any kind."""

from loadax.sources.format import Format

FORMAT = Format(
    "from_objects",
    "a file",
    "",
    opener="loadax.sources.objects.source:open_objects",
    lacks="files",
    metadata=False,
)
