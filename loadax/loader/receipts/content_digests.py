"""`ContentDigests`: states that are bound to the bytes of the data."""

from dataclasses import dataclass
from typing import Any, final

from loadax.core.arguments import choice, shown
from loadax.errors import ArgumentError
from loadax.protocols import Engine


@final
@dataclass(frozen=True)
class ContentDigests:
    """Digests of the bytes of all files, for states that are refused where a byte has changed.

    For `Dataloader(contents=…)`; `contents="digest"` is `ContentDigests()`. All files are read once before the first
    batch, unless the index has their digests. They are digested again when a size, a time of change or status, or an
    ETag differs.

    Args:
        index: Folder to keep the digests in. The processes of a run that share it read a part each.
        executor: What reads the files instead of threads; needs `index`.
        progress: Whether to show a progress bar. None: if stderr is a terminal.

    Examples:
        >>> import numpy as np
        >>> from loadax import ContentDigests, Dataloader, from_npy
        >>> np.save("numbers.npy", np.arange(64))
        >>> digests = ContentDigests(index="index")
        >>> with Dataloader(from_npy("numbers.npy"), 8, contents=digests).iterate(3) as batches:
        ...     state = batches.get_state()
        >>> np.save("numbers.npy", np.arange(64)[::-1])
        >>> Dataloader(from_npy("numbers.npy"), 8, contents=digests).iterate(state)
        Traceback (most recent call last):
            ...
        loadax.errors.StateError: ...numbers.npy has other bytes than when the state was saved, ...
    """

    index: Any = None
    executor: Engine | None = None
    progress: bool | None = None


def check_contents(chosen: Any) -> None:
    """Checks the argument `contents` of `Dataloader`.

    Raises:
        ArgumentError: If it is something else.
    """
    if isinstance(chosen, str):
        choice("contents", chosen, ("identity", "digest"))
    elif chosen is not None and not isinstance(chosen, ContentDigests):
        raise ArgumentError(
            f"contents={shown(chosen)}: pass 'identity', 'digest', a "
            "loadax.ContentDigests, or None"
        )
