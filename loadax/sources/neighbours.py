"""Tells data files from what other programs keep beside them: hidden files, indices, checksums, backups."""

import re

_COMPANION = re.compile(
    r"\.(idx|index|crc|md5|sha1|sha256|bak|orig|tmp|swp|crdownload|partial|metadata)$"
    r"|~$|^#.*#$|_\$folder\$$"
    # What Megatron-LM and GPT-NeoX cache: orders of documents, samples and data sets.
    r"|(^|[-_])indexmap_.*\.npy$|[-_](doc|document|sample|shuffle|dataset|dataset_sample)_(idx|index)\.npy$"
    r"|^[0-9a-f]{32}_(sample_)?index\.npy$",
    re.IGNORECASE,
)


def is_companion(name: str) -> bool:
    """Whether a file name is that of an index, a checksum or a backup of another file.

    Examples:
        >>> from loadax.sources.neighbours import is_companion
        >>> [is_companion(name) for name in ("a.tfrecord", "a.tfrecord.idx", "a.csv~", "c4_train_doc_idx.npy")]
        [False, True, True, True]
    """
    return _COMPANION.search(name) is not None


def is_hidden(part: str) -> bool:
    """Whether one part of a path is hidden, as in Spark: `_temporary`, `_SUCCESS`, `.a.csv`, but not `_day=3`."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def is_litter(name: str) -> bool:
    """Whether a file or folder among images is hidden, or of a system; cameras name pictures `_DSC0001.JPG`."""
    return name.startswith(".") or name in ("__MACOSX", "_temporary")
