"""What lies beside data files, in folders and patterns, is left out alike by all functions that open files."""

import logging
from pathlib import Path

import pytest

from loadax.errors import LoadaxError, SourceError
from tests.formats.samples import SAMPLES, Sample, every
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]

HIDDEN = ("_temporary/0/x{}", ".spark/x{}", "_x{}", ".x{}", "._x{}", "_started_7{}", "a/_b/x{}")
COMPANIONS = (
    "a{}.idx",
    "a{}.index",
    "a{}.crc",
    ".a{}.crc",
    "a{}~",
    "#a{}#",
    "a{}.bak",
    "a{}.md5",
    "a{}.tmp",
    "_SUCCESS",
)
IN_BUCKETS = {name: SAMPLES[name] for name in ("parquet", "webdataset", "tokens")}
"""One code lists them all."""

LOCAL_OR_NOT = [
    pytest.param(sample, remote, id=f"{name} {'of a bucket' if remote else 'of a folder'}")
    for name, sample in SAMPLES.items()
    for remote in (False, True)[: 1 + (name in IN_BUCKETS)]
    if sample.together
]


def fill(folder: Path, sample: Sample) -> None:
    """Files 1 and 2, and files 9 beside them."""
    for name, value in {"a{}": 1, "b/b{}": 2, **dict.fromkeys(HIDDEN, 9)}.items():
        sample.file(folder / name.format(sample.ending), [value])
    for name in COMPANIONS[sample.function == "from_tokens" :]:  # the index of tokens belongs to them
        (folder / name.format(sample.ending)).write_bytes(b"0 17\n17 17\n9")


@pytest.mark.parametrize(("sample", "remote"), LOCAL_OR_NOT)
def test_hidden_files_and_companions_are_left_out_of_folders_and_patterns(
    sample: Sample, remote: bool, s3_server: S3Server, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, sample)
    place = str(tmp_path)
    if remote:
        s3_server.upload(tmp_path, bucket, "a b/_c/")  # what is above the pattern does not count
        place = f"s3://{bucket}/a b/_c"
    caplog.set_level(logging.INFO, "loadax")
    for path, values in {
        place: [1],
        f"{place}/": [1],
        f"{place}/*": [1],
        f"{place}/a*": [1],
        f"{place}/*{sample.ending}": [1],
        f"{place}/**/*{sample.ending}": [1, 2],
        f"{place}/*/*{sample.ending}": [2],
        f"{place}/**": [1, 2],
        f"{place}/_temporary/*/*": [9],
        f"{place}/*/_b/*": [9],
    }.items():
        caplog.clear()
        assert sample.numbers(path) == values, path
        assert "left out: " in caplog.text or values == [9] or "/*/" in path, path
    assert sample.numbers([f"{place}/_x{sample.ending}", f"{place}/.x{sample.ending}"]) == [9, 9]


@every(together=True)
def test_pattern_that_spells_a_hidden_part_takes_it(sample: Sample, tmp_path: Path) -> None:
    for folder in ("_x", "y/_x", "y/_day=3"):
        (tmp_path / folder).mkdir(parents=True)
        sample.file(tmp_path / folder / f"a{sample.ending}", [len(folder)])
    patterns = {"_x/*": [2], "*/_x/*": [4], "**/_x/*": [2, 4], "y/*/*": [8]}
    if sample.ending != ".parquet":  # there, the day is a column that `_x` lacks
        patterns["y/_*/*"] = [8, 4]
    for pattern, values in patterns.items():
        assert sample.numbers(tmp_path / f"{pattern}{sample.ending}") == values
    sample.file(tmp_path / f"a{sample.ending}", [5])
    (tmp_path / f"a{sample.ending}").rename(tmp_path / f"a{sample.ending}.bak")
    if sample.ending != ".npy":  # the name tells these from flat files
        assert sample.numbers(tmp_path / "*.bak") == [5]


@every(together=True)
def test_pattern_of_nothing_else_names_what_to_pass(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "_x").mkdir()
    sample.file(tmp_path / "_x" / f"a{sample.ending}", [3])
    with pytest.raises(
        SourceError, match=r"no file matches this pattern, but folders, hidden files, .*pass these"
    ) as at:
        sample.numbers(tmp_path / f"*/*{sample.ending}")
    named = str(at.value).partition("backups: ")[2].partition(";")[0]
    assert sample.numbers(named) == [3]
    with pytest.raises(SourceError, match=r"no file matches this pattern$"):
        sample.numbers(tmp_path / f"z*{sample.ending}")


@pytest.mark.parametrize(("sample", "remote"), LOCAL_OR_NOT)
def test_folder_with_the_name_of_a_file_is_read_as_a_folder(
    sample: Sample, remote: bool, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    for day in (1, 2):
        folder = tmp_path / "t" / f"day{day}{sample.ending}"
        folder.mkdir(parents=True)
        sample.file(folder / f"part-0{sample.ending}", [day])
        sample.file(folder / f"_part-1{sample.ending}", [9])
        (folder / "_SUCCESS").touch()
    (tmp_path / "t" / f"day3{sample.ending}").mkdir()
    (tmp_path / "t" / f"day3{sample.ending}" / "_SUCCESS").touch()
    sample.file(tmp_path / "t" / f"day4{sample.ending}", [4])
    place = str(tmp_path / "t")
    if remote:
        s3_server.upload(tmp_path / "t", bucket, "t/")
        place = f"s3://{bucket}/t"
    for path in (
        place,
        f"{place}/",
        f"{place}/*{sample.ending}",
        f"{place}/**/*{sample.ending}",
        f"{place}/day*",
        [place],
    ):
        assert sample.numbers(path) == [1, 2, 4], path
    assert sample.numbers(f"{place}/day1{sample.ending}") == [1]
    assert sample.numbers([f"{place}/day{day}{sample.ending}" for day in (1, 2)]) == [1, 2]


@every(IN_BUCKETS)
def test_object_and_folder_of_one_name(sample: Sample, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    """The object is the file, unless it is empty, as what marks a folder is."""
    for name, value in (("x", 1), ("y", 2)):
        (tmp_path / name).mkdir()
        sample.file(tmp_path / name / f"a{sample.ending}", [value])
        s3_server.upload(tmp_path / name, bucket, f"{name}{sample.ending}/")
    (tmp_path / "z").mkdir()
    sample.file(tmp_path / "z" / f"x{sample.ending}", [7])
    (tmp_path / "z" / f"y{sample.ending}").touch()
    s3_server.upload(tmp_path / "z", bucket)
    place = f"s3://{bucket}"
    assert sample.numbers(f"{place}/x{sample.ending}") == [7]
    assert sample.numbers(f"{place}/x{sample.ending}/") == [1]
    assert sample.numbers(f"{place}/y{sample.ending}") == [2]
    with pytest.raises(LoadaxError, match="there is no such file"):
        sample.numbers(f"{place}/nothing")


def test_cached_indices_of_megatron_are_no_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample = SAMPLES["tokens of arrays"]
    sample.file(tmp_path / "train.npy", [1])
    digest = "0123456789abcdef0123456789abcdef"
    names = [
        *(f"c4_train_indexmap_10ns_8sl_1s_{kind}_idx.npy" for kind in ("doc", "sample", "shuffle")),
        *(f"{digest}-GPTDataset-train-{kind}_index.npy" for kind in ("document", "sample", "shuffle")),
        *(f"{digest}-BlendedDataset-train-{kind}_index.npy" for kind in ("dataset", "dataset_sample")),
        *(f"{digest}_{kind}.npy" for kind in ("index", "sample_index")),
        "c4_train_indexmap_10mns_8msl_0.10ssp_1s.npy",
    ]
    for name in names:
        sample.file(tmp_path / name, [9])
    caplog.set_level(logging.INFO, "loadax")
    for path in (tmp_path, tmp_path / "*.npy", tmp_path / "*", f"{tmp_path}/**/*.npy"):
        caplog.clear()
        assert sample.numbers(path) == [1]
        assert f"{len(names)} files left out: " in caplog.text
    assert sample.numbers(tmp_path / names[0]) == [9]
    for kept in ("index.npy", "shuffled.npy", "my_index.npy", "documents.npy"):
        sample.file(tmp_path / kept, [2])
    assert sorted(sample.numbers(tmp_path)) == [1, 2, 2, 2, 2]


def test_indices_and_descriptions_of_nanotron_are_no_tokens(tmp_path: Path) -> None:
    for number in (1, 2):
        SAMPLES["tokens"].file(tmp_path / f"{number}_tok.ds", [number])
        (tmp_path / f"{number}_tok.ds.index").write_bytes(bytes(16))
        (tmp_path / f"{number}_tok.ds.metadata").write_text("gpt2|2\n100\n100 T!")
    (tmp_path / "notes.txt").write_text("even")
    for path in (tmp_path, tmp_path / "*", tmp_path / "*.ds", tmp_path / "*_tok*"):
        assert SAMPLES["tokens"].numbers(path) == [1, 2]
