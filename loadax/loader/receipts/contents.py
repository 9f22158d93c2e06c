"""Contents: what a state has of the files of its data, and the comparison at the resume."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from loadax.core.arguments import shown
from loadax.core.distributed import this_process
from loadax.core.formatting import count_text
from loadax.core.warn import warn_user
from loadax.dataset import Dataset
from loadax.errors import StateError
from loadax.files.paths import local_path
from loadax.loader.order_hash import short_hash
from loadax.loader.receipts.changed_files import changed, num_sums, sums_of
from loadax.loader.receipts.content_digests import ContentDigests
from loadax.redaction import redact

if TYPE_CHECKING:
    from loadax.loader.receipts.data_files import DataFile

KEY = "contents"  # field of a state

# Flags of the first number of that field.
_TIMES = 1  # times of change of local files
_DIGESTS = 2  # digests of bytes, in place of times and ETags
_REMOTE = 4  # files at URLs
_NAMED = 8  # changed files are found by `changed_files`; states of before only tell that some have changed


def contents_of(
    dataset: Dataset, chosen: str | ContentDigests | None
) -> "Contents | None":
    """The contents of a dataset, as `Dataloader(contents=…)` chooses. None: they are not compared."""
    if chosen is None:
        return None
    if chosen == "identity":
        return Contents(dataset, None)
    if isinstance(chosen, str):
        return Contents(dataset, ContentDigests())
    return Contents(dataset, chosen)


@final
class Contents:
    """What tells the files of a dataset from others of the same sizes.

    A field of a state is a list of integers: flags, number of files, a hash of all of them, and what tells which of
    them have changed; see `loadax.loader.receipts.changed_files`.

    Args:
        dataset: The dataset.
        digests: How bytes are digested. None: sizes and times are compared.
    """

    def __init__(self, dataset: Dataset, digests: ContentDigests | None):
        self._source = dataset.source
        self._digests = digests
        self._is_same: dict[str, bool] = {}  # by the field of a state

    def fields(self) -> dict[str, Any]:
        """The field of a state; empty if there are no files."""
        files, flags = self._files(self._flags)
        if not files:
            return {}
        return {KEY: _field(files, flags)}

    def prepare(self) -> None:
        """Digests the bytes now, if states have their digests."""
        if self._digests is not None:
            _ = self.digested

    def check(self, state: Mapping[str, Any]) -> None:
        """Compares the files with the field of a state.

        Raises:
            StateError: If the bytes of a file have changed, or the field is damaged.

        Warns:
            UserWarning: If a file has another size or time of change.
        """
        saved = state.get(KEY)
        if saved is None or str(saved) in self._is_same:
            return
        if not _is_field(saved):
            raise StateError(
                f"the state's {KEY!r} is {shown(saved)}; pass a state of get_state()"
            )
        files, flags = self._files(saved[0])
        if flags == saved[0]:
            self._compare(files, saved)
        self._is_same[str(saved)] = True

    def _compare(self, files: "Sequence[DataFile]", saved: list[int]) -> None:
        here = _field(files, saved[0])
        if here == saved or (not saved[0] & _NAMED and here[:3] == saved[:3]):
            return
        what = _difference(files, here, saved)
        if saved[0] & _DIGESTS:
            raise StateError(
                f"{what} other bytes than when the state was saved, so that batches "
                "would differ from those of the saved run; restore the data, or "
                "resume all the same with Dataloader(…, contents=None)"
            )
        warn_user(
            f"{what} another size or time of change (of a bucket: ETag) than when the "
            "state was saved, so that rows may differ from those of the saved run; "
            "if the data is a copy, this is no fault. To compare bytes, save states "
            "with Dataloader(…, contents='digest'); not to compare: contents=None"
        )

    @property
    def _flags(self) -> int:
        if self._digests is not None:
            return _NAMED | _DIGESTS
        if this_process().count > 1:  # each may have its own copies
            return _NAMED | _REMOTE
        return _NAMED | _REMOTE | _TIMES

    def _files(self, flags: int) -> "tuple[Sequence[DataFile], int]":
        """Files to compare, and the flags that could be heeded."""
        if flags & _DIGESTS:
            return self.digested, flags
        files: Sequence[DataFile] = self.identified
        if any(file.size < 0 for file in files if _is_remote(file)):
            flags &= ~_REMOTE
        if not flags & _REMOTE:
            files = [file for file in files if not _is_remote(file)]
        return files, flags

    @cached_property
    def identified(self) -> "list[DataFile]":
        """Sizes, and times or ETags, of at most 16,384 files."""
        from loadax.loader.receipts.data_files import identified

        return identified(self._source)

    @cached_property
    def digested(self) -> "list[DataFile]":
        """Digests of the bytes of all files and arrays in memory."""
        from loadax.loader.receipts.data_files import (
            check_digestible,
            digested,
            in_memory,
            locations_of,
        )

        check_digestible(self._source)
        chosen = self._digests or ContentDigests()
        locations = locations_of(self._source, every=True)
        files = digested(locations, chosen.index, chosen.executor, chosen.progress)
        return [*files, *in_memory(self._source)]

    @property
    def best(self) -> "list[DataFile]":
        """The files, with digests where states have them."""
        if self._digests is not None:
            return self.digested
        return self.identified

    @property
    def has_digests(self) -> bool:
        """Whether states have digests of bytes."""
        return self._digests is not None


def _is_remote(file: "DataFile") -> bool:
    return local_path(file.location) is None


def _is_field(saved: Any) -> bool:
    if not isinstance(saved, list) or len(saved) < 3:
        return False
    if any(type(number) is not int for number in saved):
        return False
    return saved[1] >= 0 and (
        not saved[0] & _NAMED or len(saved) == 3 + num_sums(saved[1])
    )


def _field(files: "Sequence[DataFile]", flags: int) -> list[int]:
    hashes = [_hash(file, flags) for file in files]
    return [flags, len(files), _short(repr(hashes)), *sums_of(hashes)]


def _hash(file: "DataFile", flags: int) -> int:
    if flags & _DIGESTS:
        return _short(repr((file.size, file.digest)))
    if flags & _TIMES or _is_remote(file):
        return _short(repr((file.size, file.generation)))
    return _short(repr(file.size))


def _short(text: str) -> int:
    return short_hash(hashlib.sha256(text.encode()).hexdigest()[:16])


def _difference(
    files: "Sequence[DataFile]",
    here: list[int],
    saved: list[int],
) -> str:
    """The beginning of a sentence about the files that have changed."""
    count = here[1]
    if count != saved[1]:
        return f"the data has {count_text(count, 'file')} in place of {saved[1]}, and"
    numbers = None
    if saved[0] & _NAMED:
        numbers = changed(count, here[3:], saved[3:])
    if numbers is None:
        return f"several of the {count_text(count, 'file')} of the data have"
    names = [redact(files[number].location) for number in numbers]
    if len(names) == 1:
        return f"{names[0]} has"
    return f"{', '.join(names[:-1])} and {names[-1]} have"
