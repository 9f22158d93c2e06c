"""The records of tar files (WebDataset) and TFRecord files."""

from typing import Any

from loadax.core.formatting import some
from loadax.errors import ArgumentError
from loadax.sources.format import Format


def _features(source: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that open a TFRecord file: features as in the first record, if that is a `tf.train.Example`.

    Raises:
        ArgumentError: When the first record lacks a feature.
    """
    from loadax.sources.shards.tfrecord import features_in

    chosen = given.pop("features", ())
    found = features_in(source)
    absent = sorted(set(chosen) - set(found))
    if absent:
        has = f"but {some(found)}; pass these" if found else "since it is not a tf.train.Example; leave --columns out"
        raise ArgumentError(f"--columns: the first record of {source} has no feature {absent[0]!r}, {has}")
    return {**given, "features": {name: found[name] for name in chosen or found}} if found else given


WEBDATASET = Format(
    "from_webdataset",
    "a tar file",
    r"\.tar$",
    rb"(?s).{257}ustar",
    "loadax.sources.shards.webdataset:open_webdataset",
    lacks=".tar file in it",
    options=("columns", "size", "cache"),
    command=lambda _, given: {**given, "decode": True},
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
    command=_features,
)
