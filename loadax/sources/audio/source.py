"""AudioSource: clips of equal length of audio files."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Boxes, Integers, Location, Outputs, Tree
from loadax.sources.audio.clip import clip_of
from loadax.sources.audio.sound_files import Samples, SoundError, SoundFiles
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, read_columns


class Clips(NamedTuple):
    """Where clips are in files.

    Args:
        lengths: Samples of each file at the rate of the clips, int64[files].
        frames: Samples of each file at its own rate, int64[files].
        rates: Rate of each file, int64[files].
        rate: Samples a second of the clips.
        samples: Samples of a clip.
        hop: Samples from the begin of one clip to the begin of the next.
        channels: Number of channels of a clip.
        mono: Whether it is the mean of a file's channels, without a dimension.
        padded: Whether files end with a clip of fewer samples, followed by zeros.
    """

    lengths: Integers
    frames: Integers
    rates: Integers
    rate: int
    samples: int
    hop: int
    channels: int
    mono: bool
    padded: bool

    @property
    def counts(self) -> Integers:
        """Number of clips of each file, int64[files]."""
        whole = np.maximum((self.lengths - self.samples) // self.hop + 1, 0)
        if not self.padded:
            return whole
        # One more for samples that no whole clip has.
        covered = np.where(whole > 0, (whole - 1) * self.hop + self.samples, 0)
        return whole + (covered < self.lengths)


@final
class AudioSource(BaseSource):
    """Row i: a clip, as `{"audio": float32[samples, channels], "file": int32[], "time": float32[]}`.

    Clips of mono are float32[samples]; padded ones have the leaf `"length"`, int32[]: how many are the file's.

    Args:
        files: Reader of the files.
        clips: Where clips are.
    """

    spec: Tree = None

    def __init__(self, files: SoundFiles, clips: Clips):
        self._files = files
        self._clips = clips
        self._ends = np.cumsum(clips.counts)
        if clips.mono:
            shape: tuple[int, ...] = (clips.samples,)
        else:
            shape = clips.samples, clips.channels
        number = ArraySpec((), np.dtype(np.int32))
        self.spec = {
            "audio": ArraySpec(shape, np.dtype(np.float32)),
            "file": number,
            **({"length": number} if clips.padded else {}),
            "time": ArraySpec((), np.dtype(np.float32)),
        }
        self.traits = Traits(owns_memory=True, reads_columns=True)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        files = self._files.locations
        more = f" and {len(files) - 1} more" * (len(files) > 1)
        clips = self._clips
        return (
            f"clips of {clips.samples} samples at {clips.rate} Hz of {files[0]}{more}"
        )

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files: `files[row["file"]]`."""
        return self._files.locations

    @property
    def groups(self) -> Integers:
        """First row of each file that has clips."""
        counts = self._clips.counts
        return (self._ends - counts)[counts > 0]

    @property
    def chunks(self) -> Integers | None:
        """Clips of files that are decoded as a whole are a chunk, others one each; None if there is no such file."""
        counts = self._clips.counts
        begins = self._ends - counts
        whole = self._files.whole & (counts > 0)
        if not whole.any():
            return None
        inner = np.repeat(self._files.whole, counts)
        inner[begins[whole]] = False
        return np.flatnonzero(~inner)

    def cache_chunks(self, count: int) -> BaseSource:  # noqa: ARG002
        return self  # which keeps decoded files by their bytes

    @property
    def addresses(self) -> Sequence[str]:
        return self.files

    def locate(self, row: int) -> list[Location]:
        """File of a clip, and its time there."""
        file, start = self._find(check_rows([row], len(self)))
        seconds = start[0] / self._clips.rate
        return [Location(self.files[file[0]], part=f"clip at {seconds:.3f} s")]

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        rows = check_rows(rows, len(self))
        files, starts = self._find(rows)
        clips = self._clips
        known: dict[str, Any] = {
            "file": files,
            "length": np.minimum(clips.samples, clips.lengths[files] - starts),
            "time": starts / clips.rate,
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
                    f"row {row}, {self.files[file]}, at {start / clips.rate:.3f} s: the "
                    f"clip can't be decoded: {error}; copy the file again, leave the row "
                    f"out: dataset.exclude([{row}]), or pass on_error='mask' to the "
                    "Dataloader"
                ) from error

    def _find(self, rows: Integers) -> tuple[Integers, Integers]:
        """The files of clips, and their first samples there."""
        files = np.searchsorted(self._ends, rows, side="right")
        numbers = rows - (self._ends - self._clips.counts)[files]
        return files, numbers * self._clips.hop

    def _clip(self, file: int, start: int) -> Samples:
        """A clip, followed by zeros where the file ends within it."""
        clips = self._clips
        return clip_of(
            partial(self._files.read, file),
            int(clips.frames[file]),
            int(clips.rates[file]),
            clips.rate,
            start,
            clips.samples,
            mono=clips.mono,
        )
