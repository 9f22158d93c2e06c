"""Advice about videos and audio."""

import jax
import numpy as np
import soundfile

import loadax
from loadax.errors import ArgumentError, SourceError
from tests.advice.registry import Case, follows
from tests.sources.video.test_damage import damage
from tests.sources.video.videos import write_video


def masked(data: loadax.Dataset, leaf: str) -> int:
    """Number of rows of the only batch that are masked."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    policy = loadax.MaskErrors(max_in_a_row=100, max_share=1.0)
    batch = loadax.Dataloader(data, len(data), mesh=mesh, on_error=policy)[0]
    assert len(batch[leaf]) == len(data)
    return int((~np.asarray(batch["mask"])).sum())


@follows(
    "leave the row out: dataset.exclude([…]), or pass on_error='mask' to the Dataloader (damaged='accept' takes what "
    "can be decoded)"
)
def damaged_frame(case: Case) -> None:
    path = case.folder / "x.mp4"
    write_video(path, 8)
    damage(path, 7)
    data = loadax.from_video(path)
    with case.refused(SourceError):
        data.read(range(8))
    assert len(data.exclude([7]).read(range(7))["image"]) == 7
    assert masked(data, "image") == 1
    assert len(loadax.from_video(path, damaged="accept")) == 8


@follows("leave the row out: dataset.exclude([…]), or pass on_error='mask' to the Dataloader")
def damaged_clip(case: Case) -> None:
    path = case.folder / "x.flac"
    soundfile.write(path, np.random.default_rng(0).standard_normal(16000) * 0.1, 8000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - 99])
    data = loadax.from_audio(path, 1.0)
    with case.refused(SourceError):
        data[1]
    assert len(data.exclude([1]).read([0])["audio"]) == 1
    assert masked(data, "audio") == 1


@follows("pass frames= as well, or every n-th frame is dataset[::n]")
def stride_without_clips(case: Case) -> None:
    write_video(case.folder / "x.mp4", 8)
    with case.refused(ArgumentError):
        loadax.from_video(case.folder, stride=2)
    assert len(loadax.from_video(case.folder, stride=2, frames=4)) == 3
    assert loadax.from_video(case.folder)[::2].read(range(4))["frame"].tolist() == [0, 2, 4, 6]
