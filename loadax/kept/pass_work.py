"""Work of a pass, and how the workers of an executor do it: a part each task, whose arrays go to the parts' folder."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Protocol, final

from loadax.errors import ArgumentError
from loadax.kept.parts import Arrays, PartsFolder
from loadax.work.payload import Payload, pack_into, versions
from loadax.work.payload_file import written_payload
from loadax.work.worker import PayloadSource


class Work(Protocol):
    """The work of a pass on each part: a pure function of the part's number, that can be pickled."""

    @property
    def label(self) -> str:
        """Name of the pass, for messages."""
        ...

    @property
    def unit(self) -> str:
        """Unit of `sizes`: `row` or `B`."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Size of each part, for progress."""
        ...

    def compute(self, part: int, over: threading.Event) -> Arrays:
        """Computes a part; may end with any exception once `over` is set."""
        ...


@final
class PartTask:
    """What a worker of an executor calls: computes parts of a pass, unless they are finished.

    Args:
        path: Path of the folder of the parts.
        work: Work of the pass.
    """

    def __init__(self, path: Path, work: Work):
        self._path = path
        self._work = work

    def __call__(self, part: int) -> float:
        """Computes a part, and returns the seconds that it took."""
        began = perf_counter()
        work = self._work
        parts = PartsFolder(self._path, work.label, len(work.sizes))
        try:
            # else all are merged, and this is a second copy
            if not parts.has(part) and parts.exists():
                with parts.computing(part):
                    parts.put(part, work.compute(part, threading.Event()))
        except Exception as error:
            error.add_note(f"loadax: in part {part}")
            raise
        return perf_counter() - began


@contextmanager
def payload_of_pass(
    folder: Path, work: Work, by_value: Sequence[str]
) -> Iterator[PayloadSource]:
    """A block in which the folder of the parts of a pass has the payload of its tasks.

    Args:
        folder: The folder.
        work: What tasks compute.
        by_value: Modules that workers can't import, so that their code is in the payload.

    Raises:
        ArgumentError: When it can't be pickled.
        SourceError: When it can't be written.
    """

    def pack(descriptor: int) -> Payload:
        try:
            return pack_into(descriptor, PartTask(folder.absolute(), work), by_value)
        except OSError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"{work.label} can't be sent to the workers of the executor: "
                f"{type(error).__name__}: {error}; leave executor= out, or make such "
                "objects where they are used",
                argument="executor",
            ) from error

    with written_payload(folder, pack) as file:
        yield PayloadSource(file.digest, "executor", versions(), tuple(file))
