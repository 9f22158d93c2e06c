"""Examples of tar files against Python's tarfile and the webdataset library, local and in a bucket."""

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from webdataset.tariterators import group_by_keys, tar_file_expander

import loadax
from loadax.errors import ArgumentError, LeafError, SourceError, UnsupportedError
from loadax.files.files import Files
from loadax.protocols import Location
from loadax.sources.file_index import index_files, run_scan
from loadax.sources.format import RecordOptions
from loadax.sources.shards.examples import RECORDS, scan_examples
from loadax.sources.shards.tar import Member, decoded, scan_members
from loadax.testing import check_source
from tests.servers.faults import FaultProxy
from tests.servers.ranges import RangeServer
from tests.servers.s3 import S3Server
from tests.sources.shards.corpora import numbered, write_tar

pytest_plugins = ["tests.servers.fixtures"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three tar files of 7, 0 and 5 examples."""
    for number, (count, first) in enumerate([(7, 0), (0, 0), (5, 7)]):
        write_tar(tmp_path / "shards" / f"{number:05}.tar", numbered(count, first))
    return tmp_path / "shards"


def jpeg(seed: int, side: int = 24) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side + 8, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def test_examples_are_those_of_the_library_that_defines_them(shards: Path) -> None:
    data = loadax.from_webdataset(shards, columns=["txt", "cls", "__key__"])
    library = []
    for path in sorted(shards.iterdir()):
        with path.open("rb") as file:
            library += group_by_keys(tar_file_expander([{"url": str(path), "stream": file}]))
    assert len(data) == len(library) == 12
    for mine, example in zip([data[row] for row in range(12)], library, strict=True):
        assert mine == {name: example[name] for name in ("txt", "cls", "__key__")}
    assert repr(data.source) == "12 examples (cls, txt) in 3 tar files"
    batch = data.read(np.array([11, 0, 3, 3]))
    assert batch["cls"].tolist() == [b"11", b"0", b"3", b"3"]
    assert batch["__key__"].tolist() == ["000011", "000000", "000003", "000003"]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_tarfile(kind: int, tmp_path: Path) -> None:
    """With long names, prefixes, names that are not ASCII, folders and links."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=kind) as shard:
        for index, name in enumerate(["a.txt", "b/" * 60 + "c.txt", "é.txt", f"{'d' * 80}/{'e' * 90}.txt"]):
            folder = tarfile.TarInfo(f"folder{index}")
            folder.type = tarfile.DIRTYPE
            shard.addfile(folder)
            link = tarfile.TarInfo(f"link{index}")
            link.type, link.linkname = tarfile.SYMTYPE, "l" * 150 if kind != tarfile.USTAR_FORMAT else "a"
            shard.addfile(link)
            member = tarfile.TarInfo(name)
            member.size = index * 511
            shard.addfile(member, io.BytesIO(bytes(index * 511)))
    members: list[Member] = []
    content = path.read_bytes()
    run_scan(scan_members(str(path), len(content), members.extend), len(content), lambda low, high: content[low:high])
    with tarfile.open(path) as shard:
        expected = [(one.name, one.offset_data, one.size, one.issym()) for one in shard if not one.isdir()]
    assert [(decoded(name), *rest) for name, *rest in members] == expected


def test_a_size_of_more_than_eight_gibibytes(tmp_path: Path) -> None:
    """Octal digits end there: GNU writes bytes, pax a record."""
    size = 9 << 30
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        path = tmp_path / f"{kind}.tar"
        member = tarfile.TarInfo("0.bin")
        member.size = size
        header = member.tobuf(kind)
        path.write_bytes(header)
        os.truncate(path, len(header) + size + 1024)  # nothing of it lies on the disk
        data = loadax.from_webdataset(path)
        assert data.source.locate(0) == [Location(str(path), len(header), len(header) + size - 1, "bin")]


def test_what_is_not_part_of_an_example(tmp_path: Path) -> None:
    files = {"./a/1.jpg": b"x", "._1.jpg": b"hidden", "a/__index__.json": b"", "README": b"", "__meta__.txt": b"m"}
    write_tar(tmp_path / "x.tar", {**files, "a/2.JPG": b"y", "b.c/2.seg.png": b"z"})
    with pytest.raises(SourceError, match="has no file with the extension 'jpg'"):
        loadax.from_webdataset(tmp_path / "x.tar")
    write_tar(tmp_path / "x.tar", {**files, "a/2.JPG": b"y"})
    data = loadax.from_webdataset(tmp_path / "x.tar", columns=["jpg", "__key__"])
    assert [data[row] for row in range(2)] == [{"jpg": b"x", "__key__": "./a/1"}, {"jpg": b"y", "__key__": "a/2"}]


def test_decoded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6.0).reshape(2, 3))
    parts = {"jpg": jpeg(1), "cls": b"7\n", "txt": "é".encode(), "npy": buffer.getvalue(), "json": b'{"a": 1}'}
    write_tar(tmp_path / "x.tar", {f"{i}.{end}": content for i in range(3) for end, content in parts.items()})
    data = loadax.from_webdataset(tmp_path / "x.tar", decode=True)
    example = data[1]
    assert (example["cls"], example["cls"].dtype, example["txt"], example["json"]) == (7, np.int32, "é", b'{"a": 1}')
    assert example["npy"].tolist() == [[0, 1, 2], [3, 4, 5]]
    write = tmp_path / "images" / "only"
    write.mkdir(parents=True)
    (write / "1.jpg").write_bytes(parts["jpg"])
    for size in (None, (16, 16)):
        folder = loadax.from_images(write.parent, size)
        data = loadax.from_webdataset(tmp_path / "x.tar", columns=["cls", "jpg"], decode=True, size=size)
        np.testing.assert_array_equal(data[2]["jpg"], folder[0]["image"])
        batch = next(iter(loadax.Dataloader(data, 3, num_epochs=1, mesh=one_device())))
        np.testing.assert_array_equal(batch["jpg"][0], folder[0]["image"])
        assert batch["cls"].tolist() == [7, 7, 7]


def one_device() -> jax.sharding.Mesh:
    return jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])


def test_images_of_different_sizes_are_stacked_after_a_map_or_a_size(tmp_path: Path) -> None:
    files = {f"{i}.jpg": jpeg(i, 20 + i) for i in range(4)}
    write_tar(tmp_path / "x.tar", files)
    data = loadax.from_webdataset(tmp_path / "x.tar", decode=True)
    with pytest.raises(LeafError, match=r"row 2 \(.*x.tar, jpg\): leaf \['jpg'\] is uint8\[22, 30, 3\], expec"):
        data.read(np.array([0, 2]))
    assert [data[row]["jpg"].shape for row in range(4)] == [(20 + i, 28 + i, 3) for i in range(4)]
    cropped = data.map(lambda example: example["jpg"][:8, :8])
    assert cropped.read(np.arange(4)).shape == (4, 8, 8, 3)
    sized = loadax.from_webdataset(tmp_path / "x.tar", decode=True, size=(8, 12))
    assert sized.source.traits.reads_columns
    out = np.zeros((3, 4, 12, 3), np.uint8)
    rows = np.array([3, 0, 3])
    sized.source.read_into(rows, [((2, 6), (0, 12), (0, 3))], [out])
    np.testing.assert_array_equal(out, sized.read(rows)["jpg"][:, 2:6])


class TestTheContractOfASource:
    @pytest.mark.processes
    def test_local(self, shards: Path) -> None:
        check_source(loadax.from_webdataset(shards, columns="cls", decode=True))
        check_source(loadax.from_webdataset(shards).source, loader=False)

    @pytest.mark.processes
    def test_in_a_bucket(self, shards: Path, s3_server: S3Server, s3_proxy: FaultProxy, bucket: str) -> None:
        """One list finds the sizes; the index is read by whole windows; a step is one request a file at most."""
        s3_server.upload(shards, bucket, "shards/")
        data = loadax.from_webdataset(f"s3://{bucket}/shards/", columns=["cls", "txt"], index=shards.parent / "index")
        assert len(s3_proxy.log) == 1 + 3
        s3_proxy.clear()
        again = loadax.from_webdataset(f"s3://{bucket}/shards/*.tar", index=shards.parent / "index")
        assert len(s3_proxy.log) == 1
        s3_proxy.clear()
        rows = np.random.default_rng(0).permutation(12)
        batch = again.read(rows)
        assert len(s3_proxy.log) == 2
        local = loadax.from_webdataset(shards).read(rows)
        for name in ("cls", "txt"):
            assert batch[name].tolist() == local[name].tolist()
        assert again.source.traits.concurrent_reads == 4
        check_source(data.map_batch(lambda batch: batch["cls"].astype("S2").astype(np.int32)))


class TestTheIndex:
    def test_of_remote_files_is_made_by_windows(
        self, tmp_path: Path, http_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Headers that cross the end of a window, members that are longer than one, and more files than at once."""
        monkeypatch.setattr("loadax.sources.file_index.WINDOW", 700)
        monkeypatch.setattr("loadax.sources.file_index.AT_ONCE", 2)
        for number in range(5):
            write_tar(tmp_path / f"{number}.tar", numbered(6, 6 * number))
        local = loadax.from_webdataset(tmp_path)
        remote = loadax.from_webdataset([f"{http_proxy.url}/{number}.tar" for number in range(5)])
        assert [remote[row] for row in range(30)] == [local[row] for row in range(30)]

    def test_shows_its_progress(self, shards: Path, capfd: pytest.CaptureFixture[str]) -> None:
        loadax.from_webdataset(shards, progress=True)
        assert "index: 100%" in capfd.readouterr().err


class TestBadInput:
    @pytest.mark.parametrize(
        ("cut", "message"),
        [
            (100, "x.tar: the tar file is cut short at byte 100, where its end is not marked; copy it again"),
            (1000, "x.tar: the tar file is cut short at byte 1000, in member '000011.txt', which takes bytes 512 to"),
            (-10_240, "x.tar: the tar file is cut short at byte .* after '000013.cls', where its end is not marked"),
        ],
    )
    def test_cut_short(self, cut: int, message: str, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", numbered(3, 11))
        content = path.read_bytes()
        with tarfile.open(path) as shard:
            end = max(one.offset_data + -(-one.size // 512) * 512 for one in shard)
        path.write_bytes(content[: end if cut < 0 else cut])
        with pytest.raises(SourceError, match=message):
            loadax.from_webdataset(path)

    @pytest.mark.parametrize("link", [os.link, os.symlink])
    def test_links(self, link: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Python's tarfile and tar write one for each further name of a file."""
        monkeypatch.chdir(tmp_path)
        Path("0.txt").write_text("zero")
        link("0.txt", "1.txt")
        with tarfile.open("x.tar", "w") as shard:
            for name in ("0.txt", "1.txt"):
                shard.add(name)
        message = r"x.tar: '1.txt' is a link, without bytes of its own; write the tar file again with tar --deref"
        with pytest.raises(SourceError, match=message) as caught:
            loadax.from_webdataset("x.tar")
        command = str(caught.value).rpartition(" with ")[2].split("\n")[0].split()
        subprocess.run([*command, "-cf", "x.tar", "0.txt", "1.txt"], check=True)
        assert [row["txt"] for row in loadax.from_webdataset("x.tar")] == [b"zero", b"zero"]

    @pytest.mark.parametrize("zeros", [1024, 512, 10_240, 3 << 20, None])
    @pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    def test_joined_by_cat(self, zeros: int | None, kind: int, tmp_path: Path) -> None:
        """With the padding of GNU tar (None), or only the end that Go's and Rust's writers mark."""
        joined = tmp_path / "x.tar"
        with joined.open("wb") as file:
            for number in range(3):
                shard = write_tar(
                    tmp_path / "part",
                    numbered(2, 2 * number) | {"é" * 40 + "/" + "f" * 70 + f"{number}.cls": b"9"},
                    kind,
                )
                content = shard.read_bytes()
                if zeros is not None:
                    content = content.rstrip(b"\0")
                    content += bytes(-len(content) % 512 + zeros)
                file.write(content)
        assert [row["cls"] for row in loadax.from_webdataset(joined, columns="cls")] == b"0 1 9 2 3 9 4 5 9".split()

    def test_joined_by_cat_on_a_server(self, tmp_path: Path, range_server: RangeServer) -> None:
        parts = [write_tar(tmp_path / f"{number}", numbered(20, 20 * number)).read_bytes() for number in range(3)]
        ends = [len(part.rstrip(b"\0")) for part in parts]
        (tmp_path / "x.tar").write_bytes(
            b"".join(part[: end + -end % 512 + 1024] for part, end in zip(parts, ends, strict=True))
        )
        data = loadax.from_webdataset(f"{range_server.url}/x.tar", progress=False)
        assert data.read(range(60))["cls"].tolist() == [b"%d" % row for row in range(60)]

    def test_an_index_of_the_first_of_joined_files_is_made_again(self, tmp_path: Path) -> None:
        """Older versions stopped at the first end."""
        first = write_tar(tmp_path / "a.tar", numbered(2)).read_bytes()
        path = tmp_path / "x.tar"
        path.write_bytes(first * 2)
        index_files(
            RECORDS._replace(kind="tar 1", scan=lambda location, _: scan_examples(location, len(first))),
            Files(),
            [str(path)],
            RecordOptions(tmp_path / "index", progress=False),
        )
        assert len(loadax.from_webdataset(path, index=tmp_path / "index")) == 4

    def test_bytes_behind_the_end(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", numbered(2))
        path.write_bytes(path.read_bytes() + b"signature" * 100)
        with pytest.raises(
            SourceError, match=r"x.tar: the tar file is damaged at byte 10240: .* after '000001.cls' is wrong; copy it"
        ):
            loadax.from_webdataset(path)
        path.write_bytes(bytes(4096))
        with pytest.raises(SourceError, match=r"x.tar has no examples"):
            loadax.from_webdataset(path)

    def test_that_is_no_tar_file(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", numbered(3, 1))
        content = path.read_bytes()
        path.write_bytes(gzip.compress(content))
        with pytest.raises(SourceError, match=rf"x.tar is compressed by gzip.*; decompress it: gunzip {path}"):
            loadax.from_webdataset(path)
        path.write_bytes(b"hello" * 1000)
        with pytest.raises(SourceError, match=r"x.tar is not a tar file: it begins with b'hellohel'"):
            loadax.from_webdataset(path)
        path.write_bytes(content[:512] + b"#" * 4000 + content[4512:])
        with pytest.raises(
            SourceError, match=r"x.tar: the tar file is damaged at byte .* after '000001.txt' is wrong; copy it"
        ):
            loadax.from_webdataset(path)
        write_tar(path, {})
        with pytest.raises(SourceError, match=r"x.tar has no examples: files named like 0001.jpg, 0001.cls"):
            loadax.from_webdataset(path)
        sparse = tarfile.TarInfo("0.bin").tobuf(tarfile.GNU_FORMAT)
        header = bytearray(sparse)
        header[156:157] = b"S"
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 256)
        path.write_bytes(bytes(header) + bytes(1024))
        with pytest.raises(UnsupportedError, match=r"x.tar: the member at byte 0 is a sparse file; write .* without"):
            loadax.from_webdataset(path)

    def test_a_member_without_its_partner(self, tmp_path: Path) -> None:
        files = numbered(4)
        del files["000002.cls"]
        path = write_tar(tmp_path / "x.tar", files)
        with pytest.raises(SourceError) as caught:
            loadax.from_webdataset(path)
        with tarfile.open(path) as shard:
            begin = shard.getmember("000002.txt").offset_data
        assert str(caught.value) == (
            f"row 2, {path}, byte {begin}: the example '000002' has no file with the extension 'cls', which 3 of 4 "
            "examples have; write it again, or pass columns= with extensions that all have: ['txt']"
        )
        assert len(loadax.from_webdataset(path, columns=["txt"])) == 4
        path = write_tar(tmp_path / "y.tar", {"0.cls": b"0", "1.txt": b"a"})
        with pytest.raises(SourceError, match=r"which 1 of 2 examples have; write it again"):
            loadax.from_webdataset(path)

    def test_two_members_of_one_name(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        with tarfile.open(path, "w") as shard:
            for name in ("0.txt", "0.cls", "0.txt"):
                shard.addfile(tarfile.TarInfo(name))
        with pytest.raises(SourceError, match=r"x.tar: the example '0' has two files with the extension 'txt', the s"):
            loadax.from_webdataset(path)

    def test_what_can_not_be_decoded(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", {"0.cls": b"1", "1.cls": b"cat"})
        data = loadax.from_webdataset(path, decode=True)
        with pytest.raises(
            SourceError, match=r"row 1 \(.*x.tar, byte 1536, '1'\): 'cls' can't be decoded: invalid lit"
        ):
            data.read(np.arange(2))
        assert data.exclude([1]).read(np.arange(1))["cls"].tolist() == [1]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"columns": ["jpg"]}, r"columns=\['jpg'\]: no example has 'jpg'; they have \['cls', 'txt'\]"),
            ({"columns": []}, "pass extensions, each once"),
            ({"columns": ["txt", ".txt"]}, "pass extensions, each once"),
            ({"size": 8}, "size=8 resizes decoded images; pass decode=True too"),
            ({"decode": 1}, "decode=1"),
        ],
    )
    def test_arguments(self, arguments: dict[str, object], message: str, shards: Path) -> None:
        with pytest.raises(ArgumentError, match=message):
            loadax.from_webdataset(shards, **arguments)  # type: ignore[arg-type]
