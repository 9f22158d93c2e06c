"""Resampling: converts samples to another rate by a windowed sinc filter, so that a part equals that part of the whole.

New samples come in blocks: the rates 44100 and 16000 have the ratio 441 to 160, so that every 160 new samples see the
stored ones in the same way, 441 further on. A block is one row of a matrix product.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_CROSSINGS = 32  # zeros of the sinc on each side
_CUTOFF = 0.95  # of the lower rate's highest frequency
_BETA = 9.0  # of the Kaiser window: 90 dB
_LARGEST = 1 << 23  # elements of a filter


def is_simple(given: int, rate: int) -> bool:
    """Whether the filter between two rates is of a size that can be used."""
    old, new = ratio(given, rate)
    return (old + 2 * _reach(old, new)) * new <= _LARGEST


def ratio(given: int, rate: int) -> tuple[int, int]:
    """The smallest numbers of stored and of new samples that take the same time."""
    common = math.gcd(given, rate)
    return given // common, rate // common


def needed(given: int, rate: int, start: int, stop: int) -> tuple[int, int]:
    """The stored samples that the new ones from `start` to `stop` are made of; may go beyond the file.

    Examples:
        >>> from loadax.sources.audio.resample import needed
        >>> needed(16000, 16000, 5, 8)
        (5, 8)
    """
    old, new = ratio(given, rate)
    if old == new:
        return start, stop
    reach = _reach(old, new)
    return start // new * old - reach, -(-stop // new) * old + reach


def resample(
    samples: NDArray[np.float32], given: int, rate: int, start: int, stop: int
) -> NDArray[np.float32]:
    """New samples from `start` to `stop`.

    Args:
        samples: The stored samples that are `needed`, float32[n, channels].
        given: Rate of these.
        rate: New rate.
        start: First of the new samples.
        stop: Before which new sample to end.

    Returns:
        float32[stop - start, channels].
    """
    old, new = ratio(given, rate)
    if old == new:
        return samples
    weights = _weights(old, new)
    windows = np.lib.stride_tricks.sliding_window_view(samples, len(weights), 0)[
        ::old
    ]
    blocks = windows @ weights  # [blocks, channels, new]
    flat = blocks.transpose(0, 2, 1).reshape(-1, samples.shape[1])
    skipped = start - start // new * new
    return flat[skipped : skipped + stop - start]


def _reach(old: int, new: int) -> int:
    """Stored samples that the filter takes before and behind those of a block."""
    return math.ceil(_CROSSINGS * max(1.0, old / new) / _CUTOFF)


@lru_cache(maxsize=16)
def _weights(old: int, new: int) -> NDArray[np.float32]:
    """Weight of each stored sample for each new one of a block, float32[old + 2 * reach, new]."""
    reach = _reach(old, new)
    cutoff = min(1.0, new / old) * _CUTOFF
    places = np.arange(-reach, old + reach)[:, None]
    away = (np.arange(new) * old / new - places) * cutoff
    inside = np.clip(1 - (away / _CROSSINGS) ** 2, 0, None)
    window = (
        np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA) * (np.abs(away) < _CROSSINGS)
    )
    weights = np.sinc(away) * window
    return (weights / weights.sum(0)).astype(np.float32)
