"""What the command line can read: the kind of data follows from the path."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import final
from urllib.parse import urlsplit

from loadax.dataset import Dataset
from loadax.doors import from_npy, from_tokens, from_zarr
from loadax.errors import ArgumentError
from loadax.sources.storage import local_path

KNOWN = "a zarr array or group (a folder, or a .zip file), a .npy file, or a file of tokens (.bin, with --seq-len and --dtype)"


@final
@dataclass(frozen=True)
class SourceOptions:
    """What a path alone does not say.

    Args:
        variables: which arrays of a zarr group; None: all.
        seq_len: tokens a row, for files of tokens.
        dtype: of the tokens.
    """

    variables: tuple[str, ...] | None = None
    seq_len: int | None = None
    dtype: str | None = None


def open_source(path: str, options: SourceOptions) -> Dataset:
    """The dataset at a path or URL.

    Raises:
        ArgumentError: when it is of no kind that loadax knows, or an option does not go with its kind.
        SourceError: when it can't be read.
    """
    local = None if "|" in path else local_path(path)
    if local is not None and not local.exists():
        raise ArgumentError(f"{path}: there is nothing there; pass the path or URL of {KNOWN}")
    # A local folder is zarr whatever its name.
    end = "" if local is not None and local.is_dir() else _suffix(path)
    if options.seq_len is not None or end in (".bin", ".idx"):
        _refuse(path, "a file of tokens", options, "variables")
        if options.seq_len is None:
            raise ArgumentError(f"{path} is a file of tokens: say with --seq-len how many make a row")
        return from_tokens(path, seq_len=options.seq_len, dtype=options.dtype)
    if end == ".npy":
        _refuse(path, "a .npy file", options, "variables", "dtype")
        return from_npy(path)
    # A URL has no folder's look: there zarr stores may be called anything.
    if local is None or local.is_dir() or end == ".zip":
        _refuse(path, "a zarr store", options, "dtype")
        return from_zarr(path, variables=options.variables)
    raise ArgumentError(f"{path} is of no kind that the command line knows; pass {KNOWN}")


def _suffix(path: str) -> str:
    return PurePosixPath(urlsplit(path).path if "://" in path else path).suffix.lower()


def _refuse(path: str, kind: str, options: SourceOptions, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ArgumentError(f"{path} is {kind}, for which --{name} means nothing; leave it out")
