"""Clips of files: samples at another rate, followed by zeros where the file ends within them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from loadax.protocols import ArraySpec
from loadax.sources.audio.resample import needed, resample
from loadax.sources.audio.sound_files import Samples


class ClipForm(NamedTuple):
    """Form of clips.

    Args:
        rate: Samples a second.
        samples: Samples of a clip; None: all of the file.
        channels: Number of channels; None: their mean, without a dimension.
    """

    rate: int
    samples: int | None
    channels: int | None

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of a clip; None: it depends on the file."""
        if self.samples is None:
            return None
        if self.channels is None:
            return ArraySpec((self.samples,), np.dtype(np.float32))
        return ArraySpec((self.samples, self.channels), np.dtype(np.float32))

    def clip(
        self, read: Callable[[int, int], Samples], frames: int, given: int, start: int
    ) -> Samples:
        """Reads a clip: float32[samples, channels], or float32[samples].

        Args:
            read: Reads the samples between two places of the file at its own rate.
            frames: Samples of the file.
            given: Rate of the file.
            start: Sample of the form's rate at which the clip begins.

        Raises:
            SoundError: When its samples can't be decoded.
        """
        length = frames * self.rate // given
        samples = length if self.samples is None else self.samples
        stop = min(start + samples, length)
        first, end = needed(given, self.rate, start, stop)
        low = max(first, 0)
        high = min(end, frames)
        stored = read(low, high)
        if self.channels is None:
            stored = stored.mean(1, keepdims=True)
        around = np.pad(stored, ((low - first, end - high), (0, 0)))
        clip = resample(around, given, self.rate, start, stop)
        clip = np.pad(clip, ((0, samples - len(clip)), (0, 0)))
        if self.channels is None:
            return clip[:, 0]
        return clip
