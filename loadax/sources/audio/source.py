"""AudioSource: clips of equal length of audio files."""

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np

from loadax.core.formatting import count_text
from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Boxes, Integers, Location, Outputs, Tree
from loadax.sources.audio.clip import ClipForm
from loadax.sources.audio.sound_files import Samples, SoundError, SoundFiles
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, read_columns


@final
class AudioSource(BaseSource):
    """Row i: a clip, as `{"audio": float32[samples, channels], "file": int32[], "time": float32[]}`.

    Clips of mono are float32[samples]; padded ones have the leaf `"length"`, int32[]: how many are the file's.

    Args:
        files: Reader of the files.
        form: Form of the clips, whose number of samples is known.
        hop: Samples from the begin of one clip to the begin of the next.
        padded: Whether files end with a clip of fewer samples, followed by zeros.
    """

    spec: Tree = None

    def __init__(self, files: SoundFiles, form: ClipForm, hop: int, *, padded: bool):
        assert form.samples is not None
        self._files = files
        self._form = form
        self._hop = hop
        self._samples = form.samples
        table = files.table
        # of each file at the rate of the clips
        self._lengths = table.frames * form.rate // table.rates
        self._counts = np.maximum((self._lengths - self._samples) // hop + 1, 0)
        number = ArraySpec((), np.dtype(np.int32))
        leaves = {"audio": form.spec, "file": number}
        if padded:
            # One more for samples that no whole clip has.
            ends = (self._counts - 1) * hop + self._samples
            covered = np.where(self._counts > 0, ends, 0)
            self._counts += covered < self._lengths
            leaves["length"] = number
        self.spec = {**leaves, "time": ArraySpec((), np.dtype(np.float32))}
        self._ends = np.cumsum(self._counts)
        self._length = int(self._ends[-1])
        self.traits = Traits(owns_memory=True, reads_columns=True)

    def __repr__(self) -> str:
        files = self._files.locations
        more = f" and {len(files) - 1} more" * (len(files) > 1)
        length = count_text(self._samples, "sample")
        return f"clips of {length} at {self._form.rate} Hz of {files[0]}{more}"

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files: `files[row["file"]]`."""
        return self._files.locations

    @property
    def groups(self) -> Integers:
        """First row of each file that has clips."""
        return (self._ends - self._counts)[self._counts > 0]

    @property
    def chunks(self) -> Integers | None:
        """Clips of files that are decoded as a whole are a chunk, others one each; None if there is no such file."""
        whole = self._files.table.whole > 0
        inner = np.repeat(whole, self._counts)
        if not inner.any():
            return None
        inner[self.groups] = False
        return np.flatnonzero(~inner)

    def cache_chunks(self, count: int) -> BaseSource:  # noqa: ARG002
        return self  # which keeps decoded files by their bytes

    @property
    def addresses(self) -> Sequence[str]:
        return self.files

    def locate(self, row: int) -> list[Location]:
        """File of a clip, and its time there."""
        file, start = self._find(check_rows([row], len(self)))
        seconds = start[0] / self._form.rate
        return [Location(self.files[file[0]], part=f"clip at {seconds:.3f} s")]

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        rows = check_rows(rows, len(self))
        files, starts = self._find(rows)
        rate = self._form.rate
        known: dict[str, Any] = {
            "file": files,
            "length": np.minimum(self._samples, self._lengths[files] - starts),
            "time": starts / rate,
        }
        for name, into in zip(self.spec, out, strict=True):
            if into is not None and name != "audio":
                into[...] = known[name]
        if out[0] is None or boxes[0] is None:
            return
        cut = tuple(slice(*column) for column in boxes[0])
        for row, file, start, into in zip(
            rows.tolist(), files.tolist(), starts.tolist(), out[0], strict=True
        ):
            try:
                into[...] = self._clip(file, start)[cut]
            except SoundError as error:
                raise SourceError(
                    f"row {row}, {self.files[file]}, at {start / rate:.3f} s: the "
                    f"clip can't be decoded: {error}; copy the file again, leave the row "
                    f"out: dataset.exclude([{row}]), or pass on_error='mask' to the "
                    "Dataloader"
                ) from error

    def _find(self, rows: Integers) -> tuple[Integers, Integers]:
        """The files of clips, and their first samples there."""
        files = np.searchsorted(self._ends, rows, side="right")
        numbers = rows - (self._ends - self._counts)[files]
        return files, numbers * self._hop

    def _clip(self, file: int, start: int) -> Samples:
        """A clip, followed by zeros where the file ends within it."""
        table = self._files.table
        read = partial(self._files.read, file)
        return self._form.clip(
            read, int(table.frames[file]), int(table.rates[file]), start
        )
