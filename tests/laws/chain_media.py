"""Verbs that decode columns of video and audio files, done to a dataset and once more to plain lists."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadax import Dataset
from loadax.seeds import row_generator
from tests.laws.chain_verbs import Chain, Visit, with_map
from tests.laws.media_files import FPS, RATE, MediaFiles, cut, shown

Clip = Callable[[bytes, np.random.Generator | None], NDArray[Any]]


def leaves_of(chain: Chain, known: dict[bytes, Any]) -> list[str | None]:
    """Leaves that have bytes of known files in all rows; None: the rows themselves."""
    rows = [chain.like, *(row for epoch in range(3) for row in chain.values(epoch))]
    if all(isinstance(row, bytes) and row in known for row in rows):
        return [None]
    if not all(isinstance(row, dict) for row in rows):
        return []
    return [name for name in chain.like if all(isinstance(row.get(name), bytes) and row[name] in known for row in rows)]


def first_of(clip: str, total: int, length: int, rng: np.random.Generator | None) -> int:
    """Where a clip begins."""
    last = max(0, total - length)
    if rng is not None:
        return int(rng.integers(last + 1))
    return last // 2 if clip == "middle" else 0


def decode_video(chain: Chain, files: MediaFiles, leaf: str | None, random: Random, seed: int) -> Chain:
    videos, _ = files.contents
    count = random.randint(1, 7)
    fps = random.choice([None, FPS // 2, FPS * 2])
    clip: Any = random.choice(["first", "middle", "random"])

    def made(content: bytes, rng: np.random.Generator | None) -> NDArray[Any]:
        video = videos[content]
        rows = shown(len(video.frames), fps)
        start = first_of(clip, len(rows), count, rng)
        part = rows[start : start + count]
        return video.frames[part + [part[-1]] * (count - len(part))]

    options = {"frames": count, "fps": fps, "clip": clip, **({"seed": seed} if clip == "random" else {})}
    return _decoded(
        chain, chain.dataset.decode_video(leaf, **options), f"video({leaf}, {options})", made, leaf, options
    )


def decode_audio(chain: Chain, files: MediaFiles, leaf: str | None, random: Random, seed: int) -> Chain:
    _, sounds = files.contents
    samples = random.choice([None, 1, 6, 50])
    mono = random.random() < 0.5
    clip: Any = random.choice(["first", "middle", "random"])

    def made(content: bytes, rng: np.random.Generator | None) -> NDArray[Any]:
        sound = sounds[content]
        total = len(sound.samples)
        length = samples or total
        return cut(sound, first_of(clip, total, length, rng), length, mono)

    options: dict[str, Any] = {"rate": RATE, "channels": "mono" if mono else 2, "clip": clip}
    options |= {"seconds": samples / RATE} if samples else {}
    options |= {"seed": seed} if clip == "random" else {}
    return _decoded(
        chain, chain.dataset.decode_audio(leaf, **options), f"audio({leaf}, {options})", made, leaf, options
    )


def _decoded(chain: Chain, dataset: Dataset, verb: str, clip: Clip, leaf: str | None, options: dict[str, Any]) -> Chain:
    def made(visit: Visit) -> Any:
        rng = None
        if "seed" in options:
            rng = row_generator(options["seed"], chain.maps, visit.epoch, visit.row)
        if leaf is None:
            return clip(visit.value, rng)
        return {**visit.value, leaf: clip(visit.value[leaf], rng)}

    return replace(with_map(chain, f".decode_{verb}", dataset, made), random=chain.random or "seed" in options)
