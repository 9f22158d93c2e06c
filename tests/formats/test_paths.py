"""Files, folders, patterns, lists and URLs give the same rows; what isn't there is named."""

import re
from pathlib import Path
from typing import Any

import pytest

import loadax
from loadax.errors import ArgumentError, SourceError, UnsupportedError
from loadax.sources.formats import FORMATS
from tests.formats.samples import COMPRESSED, SAMPLES, Sample, every
from tests.servers.ranges import RangeServer
from tests.servers.s3 import S3Server

pytest_plugins = ["tests.servers.fixtures"]


def test_every_function_that_opens_files_has_a_sample() -> None:
    openers = {name for name in dir(loadax) if name.startswith("from_")}
    of_objects = {"from_arrays", "from_arrow", "from_grain", "from_huggingface", "from_source", "from_stream"}
    # pairs with offsets, files of any kind as bytes, open stores, and matrices, which tests/sources/sparse opens
    others = {"from_documents", "from_lerobot", "from_objects", "from_sparse", "from_tensorstore"}
    assert {sample.function for sample in SAMPLES.values()} == openers - of_objects - others
    assert {sample.function for sample in SAMPLES.values()} >= {*FORMATS}


@every()
def test_path_of_any_type_is_opened(sample: Sample, tmp_path: Path) -> None:
    path = sample.file(tmp_path / f"a b{sample.ending}", [3, 1, 4])
    for spelled in (path, str(path), path.as_uri(), f"{tmp_path}/../{tmp_path.name}/{path.name}"):
        assert sample.numbers(spelled) == [3, 1, 4]
    files = {location.file for location in sample.open(path).source.locate(1)}
    assert all(file.startswith(str(path)) for file in files)
    assert files or sample.function == "from_csv"  # which is read whole


@every({**SAMPLES, **COMPRESSED}, together=True)
def test_folder_pattern_and_list_give_files_in_order(sample: Sample, tmp_path: Path) -> None:
    b, a, c = (
        sample.file(tmp_path / f"{name}{sample.ending}", numbers)
        for name, numbers in {"t-b": [4, 1], "t-a": [3, 1], "t-c": [5]}.items()
    )
    (tmp_path / "notes.txt").write_text("beside")
    paths: list[Any] = [
        tmp_path,
        f"{tmp_path}/",
        tmp_path.as_uri(),
        f"{tmp_path}/*{sample.ending}",
        tmp_path / "t-[a-c]*",
    ]
    for path in (*paths, [a, b, c], (a, str(b), c), f"{tmp_path}/t-{{a,b,c}}{sample.ending}"):
        assert sample.numbers(path, tmp_path / "kept") == [3, 1, 4, 1, 5], path
    assert sample.numbers([c, f"{tmp_path}/t-[ab]*"], tmp_path / "kept") == [5, 3, 1, 4, 1]
    assert {location.file for location in sample.open([c, a], tmp_path / "kept").source.locate(2)} <= {
        str(a)
    } or sample.compress


@every(together=True)
def test_missing_files_are_named(sample: Sample, tmp_path: Path) -> None:
    path = sample.file(tmp_path / "some" / f"a{sample.ending}", [1])
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.what").write_bytes(b"x")
    sample.file(tmp_path / "hidden" / f"._a{sample.ending}", [1])
    for missing, message in {
        tmp_path / f"b{sample.ending}": "there is no such file",
        tmp_path / f"b*{sample.ending}": r"no file matches this pattern$",
        tmp_path / "empty": r"the folder has no .*, but nothing; pass the files, or a pattern such as ",
        tmp_path / "hidden": r"the folder has no .*, but '?\._a",
        tmp_path / "other": r"the folder has no .*, but x\.what; pass the files, or a pattern such as ",
    }.items():
        for paths in (missing, str(missing), [path, missing]):
            with pytest.raises(SourceError, match=message) as caught:
                sample.open(paths)
            assert str(missing) in str(caught.value)


@every(together=False)
def test_missing_store_is_named(sample: Sample, tmp_path: Path) -> None:
    for missing in (tmp_path / f"b{sample.ending}", tmp_path):
        with pytest.raises(SourceError) as caught:
            sample.open(missing)
        assert str(missing) in str(caught.value)


@every()
@pytest.mark.parametrize("wrong", [7, [7], b"x", {1: 7}, iter("x")], ids=type)
def test_what_is_no_path_is_refused(sample: Sample, wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(paths?|folder)=.* is an? \w+: pass the path "):
        sample.open(wrong)


@every(together=True)
def test_empty_list_is_refused(sample: Sample) -> None:
    with pytest.raises(ArgumentError, match=r"paths?=\[\] is empty; pass the path"):
        sample.open([])


@every(together=True)
def test_urls_of_a_web_server_give_the_rows(sample: Sample, tmp_path: Path, range_server: RangeServer) -> None:
    names = [f"{name}{sample.ending}" for name in "ab"]
    for number, name in enumerate(names):
        sample.file(tmp_path / name, [number, 7])
    urls = [f"{range_server.url}/{name}" for name in names]
    if not sample.remote:
        with pytest.raises(UnsupportedError, match=rf"{urls[1]}: .* opens local files only; download the files, or mo"):
            sample.open([tmp_path / names[0], urls[1]])
        return
    for _ in range(2):
        assert sample.numbers(urls, tmp_path / "kept") == [0, 7, 1, 7]
    with pytest.raises(SourceError, match="there is no such file"):
        sample.open(f"{range_server.url}/none{sample.ending}")
    with pytest.raises(SourceError, match="this kind of server can't list its files; pass a list of URLs"):
        sample.open(f"{range_server.url}/*{sample.ending}")


@every(remote=True)
def test_bucket_gives_the_rows(sample: Sample, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    for name, numbers in {"a": [3, 1], "b %20#": [4]}.items():
        sample.file(tmp_path / f"{name}{sample.ending}", numbers)
    s3_server.upload(tmp_path, bucket, "t x/")
    url = f"s3://{bucket}/t x"
    assert sample.numbers(f"{url}/a{sample.ending}") == [3, 1]
    with pytest.raises(SourceError, match=f"s3://{bucket}/t x/none"):
        sample.open(f"{url}/none{sample.ending}")
    if not sample.together:
        return
    for path in (url, f"{url}/*{sample.ending}", [f"{url}/{name}{sample.ending}" for name in ("a", "b %2520%23")]):
        assert sample.numbers(path) == [3, 1, 4]
    for path, message in {
        f"{url}/none{sample.ending}": "there is no such file",
        f"{url}/none*": "no file matches this pattern",
        f"s3://{bucket}/empty/": "the folder has no .*, but nothing; pass the files",
    }.items():
        with pytest.raises(SourceError, match=rf"{re.escape(path)}.*: {message}"):
            sample.open(path)
