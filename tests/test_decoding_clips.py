"""`decode_audio` and `decode_video` against decoders by hand, and against `from_audio` and `from_video`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

import loadax
from loadax import Dataloader, Dataset
from loadax.errors import ArgumentError, LeafError, SourceError
from loadax.seeds import row_generator
from tests.sources.audio import test_source as audio
from tests.sources.shards.corpora import write_tar
from tests.sources.video.test_damage import cut, damage
from tests.sources.video.videos import B_FRAMES, OPEN_GROUPS, by_hand, write_video

RATE = 8000
LENGTHS = (5000, 900, 3333, 8000)


@pytest.fixture
def sounds(tmp_path: Path) -> list[bytes]:
    """FLAC files of 5000, 900, 3333 and 8000 samples in two channels."""
    contents = []
    for count in LENGTHS:
        soundfile.write(tmp_path / "x.flac", audio.noise(count, 2, seed=count), RATE)
        contents.append((tmp_path / "x.flac").read_bytes())
    return contents


def samples_of(content: bytes, folder: Path) -> NDArray[np.float32]:
    (folder / "read.flac").write_bytes(content)
    return soundfile.read(folder / "read.flac", dtype="float32")[0]


def of(contents: list[bytes]) -> Dataset:
    return loadax.from_source([{"file": content, "label": row} for row, content in enumerate(contents)])


# ---- audio


@pytest.mark.parametrize("name", audio.KINDS)
def test_audio_of_all_formats(name: str, tmp_path: Path) -> None:
    """Whole files, clips from their begin, middle and end, and other rates."""
    path = tmp_path / name
    audio.write_audio(path, audio.noise(9001), subtype=audio.KINDS[name])
    whole = audio.by_hand(path)[:, 0]
    rows = loadax.from_source([path.read_bytes()])
    alike: dict[str, Any] = {"rtol": 0, "atol": audio.DIFFERENCES.get(name, 0)}
    assert np.allclose(rows.decode_audio(rate=RATE)[0], whole, **alike)
    clip: dict[str, Any] = {"rate": RATE, "seconds": 0.25}
    assert np.allclose(rows.decode_audio(**clip)[0], whole[:2000], **alike)
    begin = (len(whole) - 2000) // 2
    middle = rows.decode_audio(**clip, clip="middle")[0]
    assert np.allclose(middle, whole[begin : begin + 2000], **alike)
    for epoch in (0, 3):
        begin = int(row_generator(0, 0, epoch, 0).integers(len(whole) - 2000 + 1))
        drawn = rows.decode_audio(**clip, clip="random").read([0], epoch=epoch)[0]
        assert np.allclose(drawn, whole[begin : begin + 2000], **alike)
    other = loadax.from_audio(path, 0.1, rate=11025, channels="mono")[0]["audio"]
    assert np.array_equal(rows.decode_audio(rate=11025, seconds=0.1)[0], other)


def test_short_audio_ends_in_zeros_and_whole_audio_is_padded(sounds: list[bytes], tmp_path: Path) -> None:
    expected = [samples_of(content, tmp_path) for content in sounds]
    rows = of(sounds)
    clips = rows.decode_audio("file", rate=RATE, seconds=0.5, channels=2)
    assert clips.spec["file"].shape == (4000, 2)
    for row, clip in enumerate(clips.read(range(4))["file"]):
        stored = expected[row][:4000]
        assert np.array_equal(clip[: len(stored)], stored)
        assert not clip[len(stored) :].any()
    whole = rows.decode_audio("file", rate=RATE).pad({"file": 8000}).read(range(4))
    assert whole["file_length"].tolist() == [*LENGTHS]
    assert np.array_equal(whole["file"][1, :900], expected[1].mean(1))


def test_spec_of_clips_needs_no_row() -> None:
    rows = loadax.from_arrays({"file": np.array([b"damaged", b"too"], object)})
    assert rows.decode_audio("file", rate=100, seconds=2).spec["file"].shape == (200,)
    assert rows.decode_video("file", frames=3, size=(4, 6)).spec["file"].shape == (3, 4, 6, 3)


def _parquet(folder: Path, contents: list[bytes]) -> Dataset:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"file": [{"bytes": content, "path": "x"} for content in contents]}), folder / "x.parquet"
    )
    return loadax.from_parquet(folder / "x.parquet")


def _tar(folder: Path, contents: list[bytes]) -> Dataset:
    write_tar(folder / "x.tar", {f"{row}.bin": content for row, content in enumerate(contents)})
    return loadax.from_webdataset(folder / "x.tar", progress=False).rename({"bin": "file"})


def _huggingface(_: Path, contents: list[bytes]) -> Dataset:
    import datasets

    rows = datasets.Dataset.from_list([{"file": {"bytes": content, "path": "x"}} for content in contents])
    return loadax.from_huggingface(rows.cast_column("file", datasets.Audio(decode=False)))


@pytest.mark.parametrize("source", [_parquet, _tar, _huggingface])
def test_audio_of_other_sources(
    source: Callable[[Path, list[bytes]], Dataset], sounds: list[bytes], tmp_path: Path
) -> None:
    clips = source(tmp_path, sounds).keep("file").decode_audio("file", rate=RATE, seconds=0.1)
    assert np.array_equal(clips.read([2])["file"][0], samples_of(sounds[2], tmp_path)[:800].mean(1))


def test_damaged_audio_is_named_and_masked(sounds: list[bytes], tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", audio.noise(5000), RATE)
    short = (tmp_path / "x.wav").read_bytes()[:900]
    soundfile.write(tmp_path / "none.wav", audio.noise(0), RATE)
    contents = [sounds[0], b"text", sounds[0][:2000], short, (tmp_path / "none.wav").read_bytes(), sounds[3]]
    data = of(contents).decode_audio("file", rate=RATE, seconds=0.2)
    reasons = ("Invalid data", "", "it is cut short", "it has no samples")
    for row, reason in enumerate(reasons, 1):
        message = rf"row {row}: leaf 'file' can't be decoded as audio: {reason}.*dataset\.exclude\(\[{row}\]\)"
        with pytest.raises(SourceError, match=message):
            data[row]
    policy = loadax.MaskErrors(max_in_a_row=9, max_share=1.0)
    (batch,) = Dataloader(data, 6, num_epochs=1, on_error=policy, mesh=_mesh())
    assert np.flatnonzero(np.asarray(batch["mask"])).tolist() == [0, 5]
    assert np.array_equal(np.asarray(batch["file"])[5], samples_of(sounds[3], tmp_path)[:1600].mean(1))


def _mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(jax.devices()[:1], ("data",))


def test_audio_of_other_channels_rates_and_lengths(sounds: list[bytes]) -> None:
    rows = of(sounds)
    with pytest.raises(SourceError, match=r"row 0: .*it has 2 channels, and channels=1; pass channels='mono'"):
        rows.decode_audio("file", rate=RATE, channels=1)[0]
    with pytest.raises(SourceError, match=r"row 0: .* its rate is 8000 Hz, .* rate=48001 .* small numbers"):
        rows.decode_audio("file", rate=48001)[0]
    with pytest.raises(LeafError, match=r"row 1: leaf 'file' has 900 samples, but the first has 5000; pass seconds="):
        rows.decode_audio("file", rate=RATE).read([0, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0}, "rate=0"),
        ({"rate": 8, "seconds": 0}, "seconds=0: pass the length of a clip"),
        ({"rate": 8, "seconds": "1"}, "seconds='1': pass seconds"),
        ({"rate": 8, "channels": "stereo"}, "channels='stereo': pass 'mono', or their number"),
        ({"rate": 8, "clip": "last"}, "clip='last': pass 'first', 'middle' or 'random'"),
        ({"rate": 8, "seed": 3}, "seed=3 is for clip='random'; leave it out"),
        ({"rate": 8, "clip": "random", "seed": "x"}, "seed='x'"),
        ({"rate": 8, "leaf": 3}, "leaf=3: pass the name of a leaf of the bytes of audio"),
    ],
)
def test_arguments_of_audio(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loadax.from_source([b""]).decode_audio(**arguments)


# ---- video


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("x.mp4", "mpeg4", {}),
        ("x.mp4", "libx264", B_FRAMES),
        ("x.mkv", "libx264", OPEN_GROUPS),
        ("x.avi", "mpeg4", {}),
        ("x.webm", "libvpx-vp9", {}),
    ],
)
def test_video_of_all_formats(name: str, codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """Clips from the begin, the middle and anywhere, which cross groups of pictures, and rates."""
    path = tmp_path / name
    write_video(path, 29, codec, options=options)
    pixels, _ = by_hand(path)
    rows = loadax.from_source([path.read_bytes()])
    assert np.array_equal(rows.decode_video(frames=5)[0], pixels[:5])
    assert np.array_equal(rows.decode_video(frames=12, clip="middle")[0], pixels[8:20])
    for epoch in (0, 1):
        begin = int(row_generator(4, 0, epoch, 0).integers(18 + 1))
        drawn = rows.decode_video(frames=11, clip="random", seed=4).read([0], epoch=epoch)[0]
        assert np.array_equal(drawn, pixels[begin : begin + 11])
    assert np.array_equal(rows.decode_video(frames=40)[0], pixels[[*range(29), *[28] * 11]])
    for fps in (10, 45):
        expected = loadax.from_video(path, fps=fps).read(range(7))["image"]
        assert np.array_equal(rows.decode_video(frames=7, fps=fps)[0], expected)


def test_frames_are_resized_as_those_of_files(tmp_path: Path) -> None:
    for name, size in (("a.mp4", (32, 48)), ("b.mp4", (48, 32))):
        write_video(tmp_path / name, 6, size=size)
    rows = of([(tmp_path / name).read_bytes() for name in ("a.mp4", "b.mp4")])
    for fit in ("crop", "stretch", "pad"):
        clips = rows.decode_video("file", frames=6, size=(16, 20), fit=fit).read([0, 1])
        expected = loadax.from_video(tmp_path, size=(16, 20), fit=fit).read(range(12))["image"]
        assert np.array_equal(clips["file"].reshape(-1, 16, 20, 3), expected)
        assert clips["label"].tolist() == [0, 1]
    message = r"row 1: leaf 'file' has frames of 48x32 pixels \(height x width\), but the first of 32x48; pass size="
    with pytest.raises(LeafError, match=message):
        rows.decode_video("file", frames=6).read([0, 1])


def test_damaged_video_is_named_and_masked(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    write_video(path, 20)
    pixels, _ = by_hand(path)
    contents = [path.read_bytes()]
    damage(path, 11)
    contents.append(path.read_bytes())
    write_video(path, 20, file_options={"movflags": "faststart"})
    cut(path, 12)
    contents += [path.read_bytes(), b"text", b""]
    data = of(contents).decode_video("file", frames=10, clip="middle")
    for row, reason in enumerate(("", r"it is cut short: 1\d of 20 frames", "Invalid data", "Invalid data"), 1):
        message = rf"row {row}: leaf 'file' can't be decoded as a video: {reason}.*dataset\.exclude\(\[{row}\]\)"
        with pytest.raises(SourceError, match=message):
            data[row]
    policy = loadax.MaskErrors(max_in_a_row=9, max_share=1.0)
    (batch,) = Dataloader(data, 5, num_epochs=1, on_error=policy, mesh=_mesh())
    assert np.flatnonzero(np.asarray(batch["mask"])).tolist() == [0]
    assert np.array_equal(np.asarray(batch["file"])[0], pixels[5:15])
    # no frame of the first group depends on the damaged one
    assert np.array_equal(of(contents).decode_video("file", frames=8)[1]["file"], pixels[:8])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frames": 0}, "frames=0"),
        ({"frames": 2, "fps": 0}, "fps=0: pass the frames of a second"),
        ({"frames": 2, "size": "x"}, "size='x'"),
        ({"frames": 2, "fit": "x"}, "fit='x'"),
        ({"frames": 2, "clip": "last"}, "clip='last': pass 'first', 'middle' or 'random'"),
        ({"frames": 2, "clip": "middle", "seed": 3}, "seed=3 is for clip='random'; leave it out"),
        ({"frames": 2, "leaf": 3}, "leaf=3: pass the name of a leaf of the bytes of a video"),
    ],
)
def test_arguments_of_video(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loadax.from_source([b""]).decode_video(**arguments)


# ---- both


def test_leaf_that_has_no_bytes() -> None:
    rows = loadax.from_source([{"file": np.zeros(3, np.float32)}])
    message = (
        r"row 0: leaf 'file' is float32\[3\], not the bytes of audio; .* leave decode_audio out for one of samples"
    )
    with pytest.raises(LeafError, match=message):
        rows.decode_audio("file", rate=8)[0]
    with pytest.raises(LeafError, match=r"decode_video, row 0: there is no leaf 'fill'; did you mean 'file'\?"):
        rows.decode_video("fill", frames=1)[0]


@pytest.mark.parametrize("missing", [None, {"bytes": None, "path": "x.wav"}], ids=["None", "dict"])
def test_a_row_without_bytes_is_masked(missing: Any, sounds: list[bytes]) -> None:
    rows = loadax.from_source([{"file": sounds[0]}, {"file": missing}]).decode_audio("file", rate=RATE, seconds=0.1)
    message = r"row 1: leaf 'file' has no bytes \(None\); leave the row out: dataset\.exclude\(\[1\]\)"
    with pytest.raises(SourceError, match=message):
        rows[1]
    assert len(rows.exclude([1]).read([0])["file"]) == 1
    (batch,) = Dataloader(rows, 2, mesh=_mesh(), on_error="mask")
    assert np.asarray(batch["mask"]).tolist() == [True, False]


def test_a_name_is_refused_where_examples_have_none(sounds: list[bytes]) -> None:
    with pytest.raises(LeafError, match="there is no leaf 'file': the example is one array, without a name"):
        loadax.from_source(sounds).decode_audio("file", rate=RATE)[0]


def test_random_clips_after_resume_and_in_workers(sounds: list[bytes], tmp_path: Path) -> None:
    data = of(sounds * 2).decode_audio("file", rate=RATE, seconds=0.1, clip="random").shuffle(seed=1)
    loader = Dataloader(data, 4, num_epochs=2, mesh=_mesh())
    expected = []
    for step in range(4):
        for row in loader.rows(step).tolist():
            whole = samples_of(sounds[row % 4], tmp_path).mean(1)
            begin = int(row_generator(0, 0, step // 2, row).integers(len(whole) - 800 + 1))
            expected.append(whole[begin : begin + 800])
    batches = list(Dataloader(data, 4, num_epochs=2, mesh=_mesh(), num_workers=2))
    assert np.array_equal(np.concatenate([batch["file"] for batch in batches]), expected)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    resumed = np.concatenate([batch["file"] for batch in loader.iterate(state)])
    assert np.array_equal(resumed, expected[4:])
    with pytest.raises(ArgumentError, match="cache"):
        data.cache(tmp_path / "x.zarr")


def test_names_of_the_verbs_tell_their_arguments() -> None:
    rows = loadax.from_source([{"file": b""}])
    audio_text = repr(rows.decode_audio("file", rate=8000, seconds=0.5, clip="random"))
    assert "decode_audio('file', rate=8000, seconds=0.5, clip='random')" in audio_text
    video_text = repr(rows.decode_video("file", frames=4, fps=10, size=8))
    assert "decode_video('file', frames=4, fps=10.0, size=(8, 8), clip='first')" in video_text
