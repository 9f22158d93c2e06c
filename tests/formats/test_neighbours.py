"""What lies beside data files, in folders and patterns, is left out alike by all functions that open files."""

import logging
from pathlib import Path

import pytest

from loadax.errors import LoadaxError, SourceError
from tests.servers.s3 import S3Server
from tests.sources.doors import DOORS, Door

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
EVERY_DOOR = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
LOCAL_OR_NOT = [
    pytest.param(door, remote, id=f"{name} {'of a bucket' if remote else 'of a folder'}")
    for name, door in DOORS.items()
    for remote in (False, True)[: 1 + (name in ("from_parquet", "from_webdataset", "from_tokens"))]  # one code for all
]


def fill(folder: Path, door: Door) -> None:
    """Files 1 and 2, and files 9 beside them."""
    for name, value in {"a{}": 1, "b/b{}": 2, **dict.fromkeys(HIDDEN, 9)}.items():
        path = folder / name.format(door.ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        door.write(path, value)
    for name in COMPANIONS[door.values is DOORS["from_tokens"].values :]:  # the index of tokens belongs to them
        (folder / name.format(door.ending)).write_bytes(b"0 17\n17 17\n9")


@pytest.mark.parametrize(("door", "remote"), LOCAL_OR_NOT)
def test_hidden_files_and_companions_are_left_out_of_folders_and_patterns(
    door: Door, remote: bool, s3_server: S3Server, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, door)
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
        f"{place}/*{door.ending}": [1],
        f"{place}/**/*{door.ending}": [1, 2],
        f"{place}/*/*{door.ending}": [2],
        f"{place}/**": [1, 2],
        f"{place}/_temporary/*/*": [9],
        f"{place}/*/_b/*": [9],
    }.items():
        caplog.clear()
        assert door.values(path) == values, path
        assert "left out: " in caplog.text or values == [9] or "/*/" in path, path
    assert door.values([f"{place}/_x{door.ending}", f"{place}/.x{door.ending}"]) == [9, 9]


@EVERY_DOOR
def test_pattern_that_spells_a_hidden_part_takes_it(door: Door, tmp_path: Path) -> None:
    for folder in ("_x", "y/_x", "y/_day=3"):
        (tmp_path / folder).mkdir(parents=True)
        door.write(tmp_path / folder / f"a{door.ending}", len(folder))
    patterns = {"_x/*": [2], "*/_x/*": [4], "**/_x/*": [2, 4], "y/*/*": [8]}
    if door.ending != ".parquet":  # there, the day is a column that `_x` lacks
        patterns["y/_*/*"] = [8, 4]
    for pattern, values in patterns.items():
        assert door.values(tmp_path / f"{pattern}{door.ending}") == values
    door.write(tmp_path / f"a{door.ending}", 5)
    (tmp_path / f"a{door.ending}").rename(tmp_path / f"a{door.ending}.bak")
    if door.ending != ".npy":  # the name tells these from flat files
        assert door.values(tmp_path / "*.bak") == [5]


@EVERY_DOOR
def test_pattern_of_nothing_else_names_what_to_pass(door: Door, tmp_path: Path) -> None:
    (tmp_path / "_x").mkdir()
    door.write(tmp_path / "_x" / f"a{door.ending}", 3)
    with pytest.raises(
        SourceError, match=r"no file matches this pattern, but folders, hidden files, .*pass these"
    ) as at:
        door.values(tmp_path / f"*/*{door.ending}")
    named = str(at.value).partition("backups: ")[2].partition(";")[0]
    assert door.values(named) == [3]
    with pytest.raises(SourceError, match=r"no file matches this pattern$"):
        door.values(tmp_path / f"z*{door.ending}")


@pytest.mark.parametrize(("door", "remote"), LOCAL_OR_NOT)
def test_folder_with_the_name_of_a_file_is_read_as_a_folder(
    door: Door, remote: bool, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    for day in (1, 2):
        folder = tmp_path / "t" / f"day{day}{door.ending}"
        folder.mkdir(parents=True)
        door.write(folder / f"part-0{door.ending}", day)
        door.write(folder / f"_part-1{door.ending}", 9)
        (folder / "_SUCCESS").touch()
    (tmp_path / "t" / f"day3{door.ending}").mkdir()
    (tmp_path / "t" / f"day3{door.ending}" / "_SUCCESS").touch()
    door.write(tmp_path / "t" / f"day4{door.ending}", 4)
    place = str(tmp_path / "t")
    if remote:
        s3_server.upload(tmp_path / "t", bucket, "t/")
        place = f"s3://{bucket}/t"
    for path in (place, f"{place}/", f"{place}/*{door.ending}", f"{place}/**/*{door.ending}", f"{place}/day*", [place]):
        assert door.values(path) == [1, 2, 4], path
    assert door.values(f"{place}/day1{door.ending}") == [1]
    assert door.values([f"{place}/day{day}{door.ending}" for day in (1, 2)]) == [1, 2]


@pytest.mark.parametrize("door", [door for door in DOORS.values() if door.remote])
def test_object_and_folder_of_one_name(door: Door, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    """The object is the file, unless it is empty, as what marks a folder is."""
    for name, value in (("x", 1), ("y", 2)):
        (tmp_path / name).mkdir()
        door.write(tmp_path / name / f"a{door.ending}", value)
        s3_server.upload(tmp_path / name, bucket, f"{name}{door.ending}/")
    (tmp_path / "z").mkdir()
    door.write(tmp_path / "z" / f"x{door.ending}", 7)
    (tmp_path / "z" / f"y{door.ending}").touch()
    s3_server.upload(tmp_path / "z", bucket)
    place = f"s3://{bucket}"
    assert door.values(f"{place}/x{door.ending}") == [7]
    assert door.values(f"{place}/x{door.ending}/") == [1]
    assert door.values(f"{place}/y{door.ending}") == [2]
    with pytest.raises(LoadaxError, match="there is no such file"):
        door.values(f"{place}/nothing")


def test_cached_indices_of_megatron_are_no_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    door = DOORS["from_tokens of arrays"]
    door.write(tmp_path / "train.npy", 1)
    digest = "0123456789abcdef0123456789abcdef"
    names = [
        *(f"c4_train_indexmap_10ns_8sl_1s_{kind}_idx.npy" for kind in ("doc", "sample", "shuffle")),
        *(f"{digest}-GPTDataset-train-{kind}_index.npy" for kind in ("document", "sample", "shuffle")),
        *(f"{digest}-BlendedDataset-train-{kind}_index.npy" for kind in ("dataset", "dataset_sample")),
        *(f"{digest}_{kind}.npy" for kind in ("index", "sample_index")),
        "c4_train_indexmap_10mns_8msl_0.10ssp_1s.npy",
    ]
    for name in names:
        door.write(tmp_path / name, 9)
    caplog.set_level(logging.INFO, "loadax")
    for path in (tmp_path, tmp_path / "*.npy", tmp_path / "*", f"{tmp_path}/**/*.npy"):
        caplog.clear()
        assert door.values(path) == [1]
        assert f"{len(names)} files left out: " in caplog.text
    assert door.values(tmp_path / names[0]) == [9]
    for kept in ("index.npy", "shuffled.npy", "my_index.npy", "documents.npy"):
        door.write(tmp_path / kept, 2)
    assert sorted(door.values(tmp_path)) == [1, 2, 2, 2, 2]


def test_indices_and_descriptions_of_nanotron_are_no_tokens(tmp_path: Path) -> None:
    for number in (1, 2):
        DOORS["from_tokens"].write(tmp_path / f"{number}_tok.ds", number)
        (tmp_path / f"{number}_tok.ds.index").write_bytes(bytes(16))
        (tmp_path / f"{number}_tok.ds.metadata").write_text("gpt2|2\n100\n100 T!")
    (tmp_path / "notes.txt").write_text("even")
    for path in (tmp_path, tmp_path / "*", tmp_path / "*.ds", tmp_path / "*_tok*"):
        assert DOORS["from_tokens"].values(path) == [1, 2]
