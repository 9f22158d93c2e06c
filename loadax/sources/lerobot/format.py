"""The record of LeRobot datasets, which are folders of files of two formats, and found by no name of their own."""

from loadax.sources.format import Format

FORMAT = Format(
    "from_lerobot",
    "a LeRobot dataset",
    opener="loadax.sources.lerobot.open:open_lerobot",
    argument="folder",
    requires={"pyarrow": "pyarrow"},
    extra="parquet",
    is_folder=True,
    metadata=False,
)
