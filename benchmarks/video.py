"""Measures videos: groups of pictures decoded an epoch, and frames a second beside what the decoder alone gives.

Writes synthetic H.264 files, then counts the groups that 1, 2 and 4 hosts decode in a shuffled epoch, and compares, in
turns, one epoch of loadax with decoding all frames by PyAV alone, and with a loop as a torch `DataLoader` runs it with
the same decoder: threads that draw clips at random, seek, and decode up to the clip's end. The epoch is the second of
three, since memory is new in the first, for which the kernel clears pages. Prints medians.
"""

import argparse
import itertools
import os
import random
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import jax
import numpy as np
from av.video.reformatter import VideoReformatter

import loadax
from loadax.sources.video.decoder import Decoder

FRAMES = 300
SIDE = 256
KEYS = 30  # frames from one keyframe to the next
CLIP = 16  # frames
BATCH = 8  # clips
THREADS = os.cpu_count() or 1
HOSTS = (1, 2, 4)
LANES = 4

Turn: TypeAlias = tuple[int, float, float]  # frames, seconds, processor seconds


def main() -> None:
    """Writes the files, counts and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=40, help="number of videos (default: 40)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contestant (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(options.files):
            write(folder / f"{number:03}.mp4", number)
        groups = options.files * FRAMES // KEYS
        for hosts in HOSTS:
            print(f"{hosts} hosts: {decoded(folder, hosts)} groups decoded of {groups}", flush=True)
        contestants: dict[str, Callable[[Path], Turn]] = {
            "PyAV alone": lambda folder: timed(lambda: alone(folder, one_converter=False)),
            "PyAV, one converter": lambda folder: timed(lambda: alone(folder, one_converter=True)),
            "loadax, in order": lambda folder: epoch(frames(folder), BATCH * CLIP),
            "loadax, shuffled chunks": lambda folder: epoch(shuffled(frames(folder)), BATCH * CLIP),
            "loadax, clips by groups": lambda folder: epoch(shuffled(clips(folder)), BATCH),
            "loadax, clips by videos": lambda folder: epoch(by_videos(clips(folder)), BATCH),
            "random clips of a loop": lambda folder: timed(lambda: random_clips(folder)),
        }
        seconds: dict[str, list[tuple[float, float]]] = {contestant: [] for contestant in contestants}
        for _ in range(options.rounds):
            for contestant, run in contestants.items():
                count, wall, processor = run(folder)
                seconds[contestant].append((count / wall, count / processor))
        for contestant, rates in seconds.items():
            wall, processor = (statistics.median(rate) for rate in zip(*rates, strict=True))
            print(f"{contestant:24} {wall:8,.0f} frames/s {processor:8,.0f} frames a processor second", flush=True)


def write(path: Path, seed: int) -> None:
    """Writes a video of a texture that moves."""
    texture = np.random.default_rng(seed).integers(0, 256, (48, 48, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    every = f"keyint={KEYS}:min-keyint={KEYS}:scenecut=0"
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=30, options={"preset": "ultrafast", "x264-params": every})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for number in range(FRAMES):
            pixels = texture[number : number + SIDE, number // 2 : number // 2 + SIDE]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            frame.pts = number
            frame.time_base = Fraction(1, 30)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def frames(folder: Path) -> loadax.Dataset:
    """Frames of all videos."""
    return loadax.from_video(folder, progress=False)


def clips(folder: Path) -> loadax.Dataset:
    """Clips of all videos, of which two of three begin within a group and end in the next."""
    return loadax.from_video(folder, frames=CLIP, progress=False)


def shuffled(data: loadax.Dataset) -> loadax.Dataset:
    """A shuffle of chunks."""
    return data.shuffle(0, block="chunks", window=2, lanes=LANES)


def by_videos(data: loadax.Dataset) -> loadax.Dataset:
    """A shuffle of blocks of as many clips as a video has, which share groups of pictures."""
    return data.shuffle(0, block=FRAMES // CLIP, window=1, lanes=LANES)


def loader(data: loadax.Dataset, batch_size: int, **options: Any) -> loadax.Dataloader:
    """A loader of an epoch on one device."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    return loadax.Dataloader(data, batch_size, **{"num_epochs": 1, **options}, mesh=mesh)


def timed(run: Callable[[], int]) -> Turn:
    """The turn of a function that returns its number of frames."""
    began, used = time.perf_counter(), time.process_time()
    count = run()
    return count, time.perf_counter() - began, time.process_time() - used


def epoch(data: loadax.Dataset, batch_size: int) -> Turn:
    """The second of three epochs."""
    made = loader(data, batch_size, num_epochs=3)
    batches = iter(made)

    def one_epoch() -> int:
        count = 0
        for batch in itertools.islice(batches, len(made) // 3):
            jax.block_until_ready(batch)
            count += batch["frame"].size
        return count

    one_epoch()
    turn = timed(one_epoch)
    one_epoch()
    return turn


def decoded(folder: Path, hosts: int) -> int:
    """Number of groups of pictures that all hosts decode in an epoch, one host after the other."""
    groups = []
    decode = Decoder.decode

    def counted(self: Decoder, group: int, wanted: Any) -> Any:
        groups.append(group)
        return decode(self, group, wanted)

    data = shuffled(loadax.from_video(folder, size=16, memory_bytes=0, progress=False))
    patched: Any = Decoder
    patched.decode = counted
    try:
        for host in range(hosts):
            for batch in loader(data, LANES * KEYS, shard_index=host, shard_count=hosts, remainder="pad"):
                jax.block_until_ready(batch)
    finally:
        patched.decode = decode
    return len(groups)


def decode_all(path: Path, one_converter: bool) -> int:
    """Decodes a video from its begin to its end, converting frames by themselves or with one converter."""
    converter = VideoReformatter()
    count = 0
    with av.open(str(path)) as file:
        file.streams.video[0].codec_context.thread_count = 1
        for frame in file.decode(video=0):
            if one_converter:
                converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
            else:
                frame.to_ndarray(format="rgb24")
            count += 1
    return count


def alone(folder: Path, one_converter: bool) -> int:
    """Decodes all videos with a thread for each processor; number of frames."""
    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(lambda path: decode_all(path, one_converter), sorted(folder.iterdir())))


def random_clips(folder: Path) -> int:
    """Batches of clips that begin anywhere, as many frames as an epoch has; each thread keeps its files open."""
    paths = sorted(folder.iterdir())
    opened = threading.local()

    def clip(drawn: tuple[Path, int]) -> Any:
        path, begin = drawn
        files = vars(opened).setdefault("files", {})
        if path not in files:
            files[path] = av.open(str(path))
            files[path].streams.video[0].codec_context.thread_count = 1
        file = files[path]
        stream = file.streams.video[0]
        first = round(begin / 30 / stream.time_base)
        file.seek(first, stream=stream)
        shown = (frame for frame in file.decode(stream) if frame.pts >= first)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in itertools.islice(shown, CLIP)])

    def batches() -> Iterator[Any]:
        generator = random.Random(0)
        count = len(paths) * FRAMES // CLIP
        drawn = [(generator.choice(paths), generator.randrange(FRAMES - CLIP)) for _ in range(count)]
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = deque[Any]()
            for item in drawn:
                waiting.append(pool.submit(clip, item))
                if len(waiting) == 4 * BATCH:
                    yield np.stack([waiting.popleft().result() for _ in range(BATCH)])
            while len(waiting) >= BATCH:
                yield np.stack([waiting.popleft().result() for _ in range(BATCH)])

    count = 0
    for batch in batches():
        jax.block_until_ready(jax.device_put(batch))
        count += len(batch) * CLIP
    return count


if __name__ == "__main__":
    main()
