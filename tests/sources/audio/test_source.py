"""Clips are parts of what a decoder by hand makes of the whole file."""

import pickle
from pathlib import Path
from typing import Any

import av
import jax
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

import loadax
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.sources.audio import sound_files
from loadax.testing import check_source

UNTYPED: Any = loadax
RATE = 8000
KINDS = {
    "a.wav": "PCM_16",
    "a.flac": "PCM_24",
    "a.ogg": "VORBIS",
    "a.opus": "OPUS",
    "a.mp3": "MPEG_LAYER_III",
    "a.m4a": "AAC",
    "a.mkv": "AAC",
}
DIFFERENCES = {"a.mp3": 1e-6}  # two decoders of soundfile give other last digits


def noise(count: int, channels: int = 1, seed: int = 0) -> NDArray[np.float32]:
    values = np.random.default_rng(seed).standard_normal((count, channels)) * 0.1
    return values.astype(np.float32)


def write_audio(path: Path, samples: NDArray[np.float32], rate: int = RATE, subtype: str = "PCM_16") -> None:
    if subtype != "AAC":
        soundfile.write(path, samples, rate, subtype=subtype, format="OGG" if path.suffix == ".opus" else None)
        return
    with av.open(str(path), "w") as file:
        stream = file.add_stream("aac", rate=rate, layout="mono")
        for begin in range(0, len(samples), 1024):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[begin : begin + 1024].T), "fltp", "mono")
            frame.rate = rate
            frame.pts = begin
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def by_hand(path: Path) -> NDArray[np.float32]:
    """All samples of a file, float32[n, channels]."""
    if path.suffix not in (".m4a", ".mkv"):
        return soundfile.read(path, dtype="float32", always_2d=True)[0]
    with av.open(str(path)) as file:
        return np.concatenate([frame.to_ndarray().T for frame in file.decode(audio=0)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 5000, 900 and 3333 samples."""
    path = tmp_path / "audio"
    path.mkdir()
    for name, count in (("a.wav", 5000), ("b.flac", 900), ("c.wav", 3333)):
        write_audio(path / name, noise(count, seed=count))
    return path


@pytest.mark.parametrize("name", KINDS)
def test_clips_equal_parts_of_the_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_audio(path, noise(20_000), subtype=KINDS[name])
    whole = by_hand(path)[:, 0]
    data = loadax.from_audio(path, 0.1, overlap=0.05, channels="mono")
    assert len(data) == (len(whole) - 800) // 400 + 1
    order = np.random.default_rng(0).permutation(len(data))
    read = data.read(order)
    for clip, time, row in zip(read["audio"], read["time"], order.tolist(), strict=True):
        assert np.allclose(clip, whole[row * 400 : row * 400 + 800], atol=DIFFERENCES.get(name, 0), rtol=0)
        assert time == np.float32(row * 0.05)
    again = pickle.loads(pickle.dumps(data))
    assert np.allclose(again[3]["audio"], whole[1200:2000], atol=DIFFERENCES.get(name, 0), rtol=0)


def test_files_that_are_decoded_as_a_whole_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write_audio(tmp_path / f"{name}.m4a", noise(8000, seed=ord(name)), subtype="AAC")
    data: Any = loadax.from_audio(tmp_path, 0.1)
    counts = data.source._counts
    assert data.source.chunks.tolist() == [0, *np.cumsum(counts)[:-1].tolist()]
    decoded = []
    decode = sound_files.decoded

    def counted(location: str) -> Any:
        decoded.append(Path(location).name)
        return decode(location)

    monkeypatch.setattr(sound_files, "decoded", counted)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    for _ in loadax.Dataloader(data.shuffle(0, block="chunks"), 4, num_epochs=1, mesh=mesh, num_workers=4):
        pass
    assert sorted(decoded) == ["a.m4a", "b.m4a", "c.m4a"]
    small: Any = loadax.from_audio(tmp_path, 0.1, memory_bytes=0)
    assert np.array_equal(small.read([0, 25, 1])["audio"], data.read([0, 25, 1])["audio"])
    assert len(small.source._files._whole) == 1


def test_contract_of_sources_holds(folder: Path) -> None:
    check_source(loadax.from_audio(folder, 0.1).source)


def test_clips_stay_in_their_file(folder: Path) -> None:
    data: Any = loadax.from_audio(folder, 0.1)
    assert data.read(range(11))["file"].tolist() == [0] * 6 + [1] + [2] * 4
    assert data.source.groups.tolist() == [0, 6, 7]
    assert data.windows(3).read(range(6))["file"].tolist() == [[0] * 3] * 4 + [[2] * 3] * 2
    assert data.source.locate(7)[0].part == "clip at 0.000 s"
    assert [Path(path).name for path in data.source.files] == ["a.wav", "b.flac", "c.wav"]


@pytest.mark.parametrize("overlap", [0, 0.05])
def test_padded_tails_have_every_sample(overlap: float, folder: Path) -> None:
    data: Any = loadax.from_audio(folder, 0.1, overlap=overlap, tail="pad", channels="mono")
    hop = round((0.1 - overlap) * RATE)
    for file, path in enumerate(sorted(folder.iterdir())):
        whole = by_hand(path)[:, 0]
        rows = [row for row in data if row["file"] == file]
        seen = np.zeros(len(whole), bool)
        for number, row in enumerate(rows):
            length = int(row["length"])
            assert np.array_equal(row["audio"][:length], whole[number * hop : number * hop + length])
            assert not row["audio"][length:].any()
            seen[number * hop : number * hop + length] = True
        assert seen.all()


@pytest.mark.parametrize(("given", "rate"), [(44100, 16000), (8000, 16000), (48000, 22050), (16000, 16000)])
def test_tone_at_another_rate(given: int, rate: int, tmp_path: Path) -> None:
    times = np.arange(given) / given
    soundfile.write(tmp_path / "x.wav", 0.5 * np.sin(2 * np.pi * 440 * times), given, subtype="FLOAT")
    whole = loadax.from_audio(tmp_path, 1.0, rate=rate, channels="mono")[0]["audio"]
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    inside = slice(200, -200)
    assert np.abs(whole - tone)[inside].max() < 1e-3
    clips = loadax.from_audio(tmp_path, 0.1, overlap=0.07, rate=rate, channels="mono")
    hop = round(0.1 * rate) - round(0.07 * rate)
    for row in range(len(clips)):
        assert np.abs(clips[row]["audio"] - whole[row * hop : row * hop + round(0.1 * rate)]).max() < 1e-6


def test_tone_above_the_new_rate_is_silent(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", np.sin(2 * np.pi * 5000 * np.arange(16000) / 16000), 16000)
    clip = loadax.from_audio(tmp_path, 1.0, rate=8000, channels="mono")[0]["audio"]
    assert np.abs(clip[200:-200]).max() < 1e-3


def test_channels(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", noise(1000, 2))
    write_audio(tmp_path / "b.wav", noise(1000, 1))
    stereo, mono = by_hand(tmp_path / "a.wav"), by_hand(tmp_path / "b.wav")
    read = loadax.from_audio(tmp_path, 0.125, channels="mono").read([0, 1])["audio"]
    assert np.array_equal(read, [stereo.mean(1), mono[:, 0]])
    assert np.array_equal(loadax.from_audio(tmp_path / "a.wav", 0.125)[0]["audio"], stereo)
    with pytest.raises(SourceError, match=r"b.wav has 1 channel, and others have 2; pass channels='mono'"):
        loadax.from_audio(tmp_path, 0.1)
    with pytest.raises(SourceError, match=r"a.wav has 2 channels, and others have 1"):
        loadax.from_audio(tmp_path, 0.1, channels=1)


def test_rates(tmp_path: Path) -> None:
    write_audio(tmp_path / "a.wav", noise(1000), 8000)
    write_audio(tmp_path / "b.wav", noise(1000), 16000)
    with pytest.raises(SourceError, match=r"b.wav has a rate of 16000 Hz, and others have 8000 Hz; pass rate=8000"):
        loadax.from_audio(tmp_path, 0.05)
    assert len(loadax.from_audio(tmp_path, 0.05, rate=8000)) == 2 + 1
    with pytest.raises(
        ArgumentError, match=r"rate=7919: .*a.wav has a rate of 8000 Hz.* pass a common rate, such as 16000"
    ):
        loadax.from_audio(tmp_path, 0.05, rate=7919)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.wav", "it is cut short"),
        ("a.ogg", "it has no samples|has no samples"),
        ("a.m4a", "it can't be read as audio: Invalid data"),
    ],
)
def test_file_that_is_cut_short(name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_audio(path, noise(20_000), subtype=KINDS[name])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SourceError, match=rf"{name}:? ({message})"):
        loadax.from_audio(path, 0.1)
    write_audio(tmp_path / "b.wav", noise(900))
    accepted: Any = loadax.from_audio([path, tmp_path / "b.wav"], 0.1, damaged="accept")
    assert len(accepted) == 1 + (name == "a.wav") * 12


@pytest.mark.parametrize("name", ["a.mp3", "a.flac"])
def test_last_clips_of_a_file_that_is_cut_short_are_masked(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_audio(path, noise(20_000), subtype=KINDS[name])
    whole = by_hand(path)[:, 0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    data = loadax.from_audio(path, 0.1, channels="mono")
    with pytest.raises(SourceError, match=r"row 24, .*a\.\w+, at 2.400 s: the clip can't be decoded: "):
        data[24]
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    policy = loadax.MaskErrors(max_in_a_row=100, max_share=1.0)
    (batch,) = loadax.Dataloader(data, 25, num_epochs=1, mesh=mesh, on_error=policy)
    real = np.asarray(batch["mask"])
    count = int(real.sum())
    assert 10 <= count < 18
    assert real.tolist() == [row < count for row in range(25)]
    clips = np.asarray(batch["audio"])[: count - 1]  # the last of an MP3 file may have lost what follows it
    assert np.allclose(clips, whole[: len(clips) * 800].reshape(-1, 800), atol=1e-6)


def test_files_that_changed_or_are_no_audio(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    write_audio(path, noise(1000))
    data: Any = loadax.from_audio(path, 0.1)
    write_audio(path, noise(2000))
    with pytest.raises(SourceError, match=r"x.wav: the file has changed since it was opened"):
        data[0]
    path.unlink()
    with pytest.raises(SourceError, match=r"x.wav: it can't be read: No such file"):
        data[0]
    path.write_bytes(b"no audio at all" * 10)
    with pytest.raises(SourceError, match=r"x.wav: it can't be read as audio: Format not recognised"):
        loadax.from_audio(path, 0.1)
    write_audio(path, noise(1000))
    with pytest.raises(SourceError, match=r"loadax\.from_audio\('.*x.wav', seconds=1\)"):
        loadax.from_csv(path)


def test_index_keeps_the_facts_of_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    expected = loadax.from_audio(folder, 0.1, index=index).read(range(11))
    with monkeypatch.context() as patched:
        patched.setattr("loadax.sources.audio.open.sound_of", None)
        again = loadax.from_audio(folder, 0.1, index=index)
    assert np.array_equal(again.read(range(11))["audio"], expected["audio"])
    write_audio(folder / "b.flac", noise(1700))
    assert len(loadax.from_audio(folder, 0.1, index=index)) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, "seconds=0: pass the length of a clip"),
        ({"seconds": "x"}, "seconds='x': pass seconds, such as 2.5"),
        (
            {"seconds": 9},
            r"no file has a clip of 9 seconds: the longest, .*a.wav, has 0.625; pass fewer seconds, or tail='pad'",
        ),
        ({"seconds": 1, "overlap": 1}, "overlap=1: clips of 1 seconds .* never move on; pass less"),
        ({"seconds": 1, "rate": 0}, "rate=0"),
        ({"seconds": 1, "channels": "left"}, "channels='left'"),
        ({"seconds": 1, "tail": "x"}, "tail='x'"),
        ({"seconds": 1, "damaged": "x"}, "damaged='x'"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: Any, message: str, folder: Path) -> None:
    with pytest.raises((ArgumentError, SourceError), match=message):
        UNTYPED.from_audio(folder, **arguments)


def test_urls_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"s3://a/x.wav: from_audio opens local files only; download"):
        loadax.from_audio("s3://a/x.wav", 1)
