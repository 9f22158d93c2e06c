"""The records of tar files (WebDataset) and TFRecord files."""

from loadax.files import magic
from loadax.sources.format import Format

WEBDATASET = Format(
    "from_webdataset",
    "a tar file",
    r"\.tar$",
    magic.TAR,
    "loadax.sources.shards.webdataset:open_webdataset",
    lacks=".tar file in it",
    options=("columns", "size", "cache"),
    command="loadax.sources.shards.webdataset:command_arguments",
)
TFRECORD = Format(
    "from_tfrecord",
    "a TFRecord file",
    r"\.tfrec",  # as `train.tfrecord-00000-of-00008`, or Kaggle's `0.tfrec`
    opener="loadax.sources.shards.tfrecord:open_tfrecord",
    lacks="file with .tfrecord in its name",
    requires={"google-crc32c": "google_crc32c"},
    extra="tfrecord",
    options=("columns", "cache"),
    columns="features",
    command="loadax.sources.shards.tfrecord:command_arguments",
)
