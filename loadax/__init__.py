"""loadax: a data loader for JAX whose every batch is already a globally sharded `jax.Array`.

Public names are imported on first use, so that `import loadax` is fast.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loadax.core.version import __version__ as __version__

if TYPE_CHECKING:
    from loadax import errors, seeds, sharding, testing
    from loadax.combine import concat, mix, zip
    from loadax.dataset import Dataset
    from loadax.errors import LoadaxError
    from loadax.interop.progress import progress
    from loadax.io import (
        as_dataset,
        from_array_record,
        from_arrays,
        from_arrow,
        from_audio,
        from_csv,
        from_documents,
        from_grain,
        from_huggingface,
        from_images,
        from_jsonl,
        from_lerobot,
        from_npy,
        from_objects,
        from_parquet,
        from_source,
        from_sparse,
        from_stream,
        from_tensorstore,
        from_tfrecord,
        from_tokens,
        from_video,
        from_webdataset,
        from_zarr,
        write_zarr,
    )
    from loadax.loader.buckets import Buckets
    from loadax.loader.chain import chain
    from loadax.loader.dataloader import Dataloader
    from loadax.loader.device.device_map import DeviceMap
    from loadax.loader.device.sparse import pack_sparse
    from loadax.loader.epoch import Epoch
    from loadax.loader.host_rows import HostRows
    from loadax.loader.iterator import DataIterator
    from loadax.loader.mask_errors import MaskErrors
    from loadax.loader.metrics.stats import Stats
    from loadax.loader.preflight.report import Preflight
    from loadax.loader.receipts.content_digests import ContentDigests
    from loadax.loader.receipts.receipt import Receipt
    from loadax.loader.reports.bottleneck import Report
    from loadax.protocols import Source
    from loadax.row_index.statistics import Statistics
    from loadax.sources.images.crop import RandomCrop

_HOME = {  # of names that are not in `loadax.io`
    "Buckets": "loadax.loader.buckets",
    "ContentDigests": "loadax.loader.receipts.content_digests",
    "DataIterator": "loadax.loader.iterator",
    "Dataloader": "loadax.loader.dataloader",
    "Dataset": "loadax.dataset",
    "DeviceMap": "loadax.loader.device.device_map",
    "Epoch": "loadax.loader.epoch",
    "HostRows": "loadax.loader.host_rows",
    "LoadaxError": "loadax.errors",
    "MaskErrors": "loadax.loader.mask_errors",
    "Preflight": "loadax.loader.preflight.report",
    "RandomCrop": "loadax.sources.images.crop",
    "Receipt": "loadax.loader.receipts.receipt",
    "Report": "loadax.loader.reports.bottleneck",
    "Source": "loadax.protocols",
    "Statistics": "loadax.row_index.statistics",
    "Stats": "loadax.loader.metrics.stats",
    "chain": "loadax.loader.chain",
    "concat": "loadax.combine",
    "mix": "loadax.combine",
    "pack_sparse": "loadax.loader.device.sparse",
    "progress": "loadax.interop.progress",
    "zip": "loadax.combine",
}
_MODULES = ("errors", "seeds", "sharding", "testing")

__all__ = [
    "Buckets",
    "ContentDigests",
    "DataIterator",
    "Dataloader",
    "Dataset",
    "DeviceMap",
    "Epoch",
    "HostRows",
    "LoadaxError",
    "MaskErrors",
    "Preflight",
    "RandomCrop",
    "Receipt",
    "Report",
    "Source",
    "Statistics",
    "Stats",
    "as_dataset",
    "chain",
    "concat",
    "errors",
    "from_array_record",
    "from_arrays",
    "from_arrow",
    "from_audio",
    "from_csv",
    "from_documents",
    "from_grain",
    "from_huggingface",
    "from_images",
    "from_jsonl",
    "from_lerobot",
    "from_npy",
    "from_objects",
    "from_parquet",
    "from_source",
    "from_sparse",
    "from_stream",
    "from_tensorstore",
    "from_tfrecord",
    "from_tokens",
    "from_video",
    "from_webdataset",
    "from_zarr",
    "mix",
    "pack_sparse",
    "progress",
    "seeds",
    "sharding",
    "testing",
    "write_zarr",
    "zip",
]


# so that type checkers see the imports above, and catch misspelt names
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"loadax.{name}")
        if name in __all__:
            return getattr(import_module(_HOME.get(name, "loadax.io")), name)
        from loadax.core.replacements import missing_attribute

        return missing_attribute(sys.modules[__name__], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
