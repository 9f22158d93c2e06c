"""What is written is what was there, in files that anybody's zarr reads; and what stands in the way is told."""

import json
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings, strategies as st

from loadax.core.tree import map_leaves
from loadax.errors import ArgumentError, LeafError, LeafTypeError, SourceError
from loadax.io import from_arrays, from_zarr
from loadax.protocols import ArraySpec
from loadax.writing.chunk_layout import Sizes, divides, plan_layout
from loadax.writing.write import write_zarr
from loadax.writing.written_rows import Written
from tests.limits import HANG, examples
from tests.servers.ranges import RangeServer
from tests.writing.rows import NAMES, TreeRows, files, made_up, tree_of

pytest_plugins = ["tests.servers.fixtures"]


def stored(path: Path) -> dict[str, Any]:
    """What zarr-python reads: by name, or under the empty name when the store is one array."""
    node = zarr.open(path, mode="r")
    if isinstance(node, zarr.Array):
        return {"": node[:]}
    return {name: array[:] for name, array in node.arrays()}


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_another_reader_finds_what_was_written(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = data.draw(st.integers(1, 50))
    chunk = data.draw(st.none() | st.integers(1, 9))
    shard = data.draw(st.none() | st.integers(1, 6).map(lambda times: times * (chunk or 1)))
    dtypes = st.sampled_from([np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.bool_, np.complex64])
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    leaves = data.draw(st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=3))
    tree = {f"leaf{number}": made_up(dtype, (rows, *shape), number) for number, (dtype, shape) in enumerate(leaves)}
    path = tmp_path_factory.mktemp("store") / "s"
    write_zarr(
        TreeRows(tree),
        path,
        chunk_rows=chunk,
        shard_rows=shard,
        compression=data.draw(st.sampled_from(["zstd", "blosc", None])),
        workers=data.draw(st.integers(1, 3)),
    )
    found = stored(path)
    assert found.keys() == tree.keys()
    for name, values in tree.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "float4_e2m1fn"])
def test_numbers_that_only_machine_learning_has(name: str, tmp_path: Path) -> None:
    values = made_up(getattr(ml_dtypes, name), (21, 5))
    write_zarr(TreeRows(values), tmp_path / "s", chunk_rows=2, shard_rows=8)
    store = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/s/"}, read=True).result()
    assert store.dtype.name == name
    np.testing.assert_array_equal(store.read().result(), values)


def test_one_array_is_the_store_itself(tmp_path: Path) -> None:
    values = made_up(np.int32, (10, 4))
    write_zarr(TreeRows(values), tmp_path / "s")
    assert set(files(tmp_path / "s")) == {"zarr.json", "c/0/0", "loadax.json"}
    np.testing.assert_array_equal(stored(tmp_path / "s")[""], values)
    np.testing.assert_array_equal(from_zarr(tmp_path / "s").read(np.arange(10)), values)


def test_a_tree_is_a_group_of_dotted_names(tmp_path: Path) -> None:
    tree = tree_of(20)
    write_zarr(TreeRows(tree), tmp_path / "s", shard_rows=8)
    found = from_zarr(tmp_path / "s").read(np.arange(20))
    assert sorted(found) == sorted(NAMES)
    np.testing.assert_array_equal(found["more.field"], tree["more"]["field"])
    np.testing.assert_array_equal(found["more.label"], tree["more"]["label"])
    parts = {
        f"{name}/c/{part}{tail}" for part in range(3) for name, tail in zip(NAMES, ("/0/0/0", "/0", ""), strict=True)
    }
    nodes = {f"{name}/zarr.json" for name in NAMES}
    assert set(files(tmp_path / "s")) == {"zarr.json", "loadax.json", *nodes, *parts}


def test_the_group_repeats_its_arrays_for_those_who_cannot_list(tmp_path: Path) -> None:
    write_zarr(TreeRows(tree_of(5)), tmp_path / "s")
    group = json.loads((tmp_path / "s/zarr.json").read_text())
    assert group["node_type"] == "group"
    members = {name: json.loads((tmp_path / "s" / name / "zarr.json").read_text()) for name in NAMES}
    # Readers that don't know of consolidated metadata may read the store all the same.
    assert group["consolidated_metadata"] == {"kind": "inline", "must_understand": False, "metadata": members}


class Pair(NamedTuple):
    left: Any
    right: Any


def test_tuples_and_fields_are_named_too(tmp_path: Path) -> None:
    one = made_up(np.int8, (3,))
    write_zarr(TreeRows((one, {"p": Pair(one + 1, one + 2)})), tmp_path / "s")
    found = stored(tmp_path / "s")
    assert sorted(found) == ["0", "1.p.left", "1.p.right"]
    np.testing.assert_array_equal(found["1.p.right"], one + 2)


@pytest.mark.parametrize("compression", ["zstd", "blosc", None])
def test_every_chunk_has_a_checksum_and_zeros_are_stored(compression: str | None, tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_zarr(TreeRows(np.zeros((40, 8), np.float32)), path, chunk_rows=2, shard_rows=8, compression=compression)
    inner = json.loads((path / "zarr.json").read_text())["codecs"][0]["configuration"]
    assert [each["name"] for each in inner["codecs"]] == ["bytes", *([compression] if compression else []), "crc32c"]
    assert [each["name"] for each in inner["index_codecs"]] == ["bytes", "crc32c"]
    assert len(list((path / "c").iterdir())) == 5
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/", "fill_missing_data_reads": False}
    np.testing.assert_array_equal(ts.open(spec, read=True).result().read().result(), 0)


@pytest.mark.parametrize(
    ("spec", "rows", "chunk", "shard"),
    [
        ((np.uint8, (3, 1 << 20)), 10**4, 1, 42),  # rows of 3 MiB: as many as 128 MiB have
        ((np.uint16, (1025,)), 10**7, 2, 65472),  # 2050 bytes
        ((np.int64, ()), 10**10, 512, 1 << 24),
        ((np.uint8, (3, 1 << 20)), 1000, 1, 16),  # a 64th of the rows
        ((np.int64, ()), 20_000, 512, 512),
        ((np.int64, ()), 5, 8, 8),  # no larger than the data
        ((np.float64, (0,)), 7, 8, 8),
    ],
)
def test_chunks_of_four_kib_and_shards_of_128_mib(spec: Any, rows: int, chunk: int, shard: int) -> None:
    layout = plan_layout(ArraySpec(spec[1], np.dtype(spec[0])), rows, Sizes())
    assert (layout.arrays[0].chunk_rows, layout.shard_rows) == (chunk, shard)


@given(
    rows=st.integers(1, 10**6),
    shapes=st.lists(st.integers(0, 3000), min_size=1, max_size=3),
    chunk=st.none() | st.integers(1, 3000),
)
def test_store_of_an_earlier_version_is_resumed_by_its_own_parts(
    rows: int, shapes: list[int], chunk: int | None
) -> None:
    spec = {str(index): ArraySpec((width,), np.dtype(np.int16)) for index, width in enumerate(shapes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadax.writing.chunk_layout.FEW_PARTS", 1)  # as loadax 0.1.0 did
        earlier = plan_layout(spec, rows, Sizes(chunk))
    begun = earlier.shard_rows if divides(chunk, earlier.shard_rows) else None
    assert plan_layout(spec, rows, Sizes(chunk, begun)) == earlier


def test_a_shard_that_was_chosen_is_cut_as_it_goes(tmp_path: Path) -> None:
    write_zarr(TreeRows(made_up(np.int64, (2000,))), tmp_path / "s", shard_rows=1000)
    array = zarr.open_array(tmp_path / "s", mode="r")
    assert (array.shards, array.chunks) == ((1000,), (500,))  # the largest that divides 1000, of at most 512


def test_each_row_is_read_once_and_each_shard_is_one_write(tmp_path: Path) -> None:
    rows = TreeRows(tree_of(100))
    write_zarr(rows, tmp_path / "s", shard_rows=16)
    assert sorted(rows.asked) == list(range(100))


def test_the_manifest_says_what_is_there_and_the_markers_are_gone(tmp_path: Path) -> None:
    write_zarr(TreeRows({"x": made_up(np.int32, (10, 4))}, "mine"), tmp_path / "s", chunk_rows=2, shard_rows=4)
    assert json.loads((tmp_path / "s/loadax.json").read_text()) == {
        "version": 1,
        "rows": 10,
        "shard_rows": 4,
        "compression": "zstd",
        "arrays": {"x": {"shape": [10, 4], "dtype": "int32", "chunk_rows": 2}},
        "data": {"name": "mine"},
    }
    assert [each.name for each in (tmp_path / "s").glob("loadax*")] == ["loadax.json"]


# What stands in the way


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    rows, path = TreeRows(tree_of(10)), tmp_path / "s"
    write_zarr(rows, path)
    before = files(path)
    with pytest.raises(ArgumentError, match=r"s is a finished store, with rows: 10; pass overwrite=True to start over"):
        write_zarr(rows, path)
    (tmp_path / "f").mkdir()
    (tmp_path / "f/notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match=r"f is not empty and not a store of loadax; choose another path"):
        write_zarr(rows, tmp_path / "f", resume=True)
    with pytest.raises(
        ArgumentError,
        match=r"f: overwrite=True deletes only stores that loadax wrote, and this is not one; choose another path",
    ):
        write_zarr(rows, tmp_path / "f", overwrite=True)
    with pytest.raises(ArgumentError, match=r"notes.txt is a file; pass the path of a new folder"):
        write_zarr(rows, tmp_path / "f/notes.txt")
    assert files(path) == before
    assert files(tmp_path / "f") == {"notes.txt": b"mine"}


@pytest.mark.parametrize("kind", ["finished", "half-written"])
def test_overwriting_leaves_nothing_of_the_old_store(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_zarr(TreeRows({"old": made_up(np.int8, (500,))}), path, shard_rows=10)
    if kind == "half-written":
        (path / "loadax.json").rename(path / "loadax.partial.json")
    new, fresh = TreeRows({"new": made_up(np.int8, (30,))}), tmp_path / "fresh"
    write_zarr(new, path, overwrite=True)
    write_zarr(new, fresh)
    assert files(path) == files(fresh)


def test_overwriting_an_empty_place_is_writing(tmp_path: Path) -> None:
    write_zarr(TreeRows(made_up(np.int8, (30,))), tmp_path / "s", overwrite=True)
    assert len(stored(tmp_path / "s")[""]) == 30


def test_a_store_that_was_about_to_be_deleted_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "loadax.partial.json").write_text('{"version": 1, "deleting": true}')
    with pytest.raises(ArgumentError, match=r"was started with rows = null, but now it is 30"):
        write_zarr(TreeRows(made_up(np.int8, (30,))), tmp_path, resume=True)
    with pytest.raises(SourceError, match="the store is unfinished"):
        from_zarr(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"chunk_rows": 4, "shard_rows": 10},
            r"shard_rows=10 is not a multiple of chunk_rows=4; pass shard_rows=12, or another",
        ),
        ({"compression": "lz4"}, r"compression='lz4': pass 'zstd', 'blosc' or None"),
        ({"shard": (2, 2)}, r"shard\[0\]=2: pass 1 or less"),
        ({"shard": (0, True)}, r"shard\[1\]=True: pass \(i, n\)"),
        ({"shard": 3}, r"shard=3: pass \(i, n\)"),
        (
            {"overwrite": True, "resume": True},
            r"overwrite=True with resume=True: what one writes the other would delete",
        ),
        (
            {"overwrite": True, "shard": (0, 2)},
            r"overwrite=True with shard=\(0, 2\): what one writes the other would delete",
        ),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        write_zarr(TreeRows(made_up(np.int8, (30,))), tmp_path / "s", **arguments)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, r"the examples have no leaves to write"),
        ({"a": {"b": 0}, "a.b": 0}, r"leaves \['a'\]\['b'\] and \['a\.b'\] would both be the array 'a\.b'; rename one"),
        (
            {"": 0},
            r"leaf \[''\] would be the array '': names of arrays have a character other than dots.* rename it in",
        ),
        *(
            ({name: 0}, rf"would be the array {re.escape(repr(name))}: names of arrays .* no slashes .*; rename it in")
            for name in ("..", "a/b", "a\\b", "a\n", "__x", "zarr.json")
        ),
        ({"loadax": {"json": 0}}, r"array 'loadax\.json': names .* don't begin with '__' or 'loadax\.'"),
    ],
)
def test_names_that_zarr_cannot_hold(tree: dict[Any, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        write_zarr(TreeRows(map_leaves(lambda _: np.zeros(3, np.int8), tree)) if tree else Empty({}), tmp_path / "s")
    assert not (tmp_path / "s").exists()


class Empty(TreeRows):
    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("dtype", "held"),
    [("O", "not numeric"), ("M8[s]", r"datetime64\[s\]"), ("V3", r"\|V3"), ("U4", "<U4"), ("g", "float128")],
)
def test_leaves_that_are_no_numbers(dtype: str, held: str, tmp_path: Path) -> None:
    with pytest.raises(
        LeafTypeError, match=rf"leaf \['x'\] is {held}, but write_zarr writes numbers; convert it to numbers"
    ):
        write_zarr(TreeRows({"x": np.zeros(3, dtype)}), tmp_path / "s")


def test_no_rows(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the dataset has no rows to write"):
        write_zarr(TreeRows(np.zeros((0, 3))), tmp_path / "s")


def test_what_is_no_path() -> None:
    with pytest.raises(ArgumentError, match=r"path=7 is an int: pass the path or URL of a folder to write to"):
        write_zarr(TreeRows(np.zeros(3)), 7)  # type: ignore[arg-type]


def test_a_url_of_another_kind() -> None:
    with pytest.raises(SourceError, match=r"foo://x.*unsupported URL scheme.*pass a local path, or"):
        write_zarr(TreeRows(np.zeros(3)), "foo://x")


def test_what_can_only_be_read(range_server: RangeServer) -> None:
    address = f"{range_server.url}/s"
    with pytest.raises(
        ArgumentError, match=rf"{address} can't be written to \(.*\); pass a local path, or an s3:// or gs://"
    ):
        write_zarr(TreeRows(np.zeros(3)), address)


def test_rows_that_break_their_promise(tmp_path: Path) -> None:
    class Wrong(TreeRows):
        def read(self, positions: Any) -> Any:
            return {"x": np.zeros((len(positions), 3))}

    with pytest.raises(
        LeafError, match=r"the dataset's read of positions 0 to 0 gave leaf \['x'\] as float64\[1, 3\] for 1 row"
    ):
        write_zarr(Wrong({"x": np.zeros((4, 2))}), tmp_path / "s")


# Half-written stores


def break_off(path: Path, rows: TreeRows, **arguments: Any) -> None:
    broken = TreeRows(rows.tree, rows.name, fails_at=len(rows) // 2)
    with pytest.raises(OSError, match="is gone") as caught:
        write_zarr(broken, path, **arguments)
    hint = f"loadax: {path} is unfinished; resume it with resume=True, on the command line --resume"
    assert hint in caught.value.__notes__


def test_what_was_not_written_to_its_end_is_not_opened(tmp_path: Path) -> None:
    rows, path = TreeRows(tree_of(100)), tmp_path / "s"
    break_off(path, rows, shard_rows=10)
    refusal = (
        r"s: the store is unfinished \(loadax\.json is missing\); "
        r"resume with `loadax convert … --resume` or write_zarr\(\.\.\., resume=True\), or delete it"
    )
    with pytest.raises(SourceError, match=refusal):
        from_zarr(path)
    with pytest.raises(ArgumentError, match=r"s is an unfinished store; pass resume=True to resume it"):
        write_zarr(rows, path, shard_rows=10)


@pytest.mark.parametrize("sizes", [{"shard_rows": 10}, {}], ids=["given again", "of the store"])
def test_resume_keeps_what_is_whole_and_writes_the_rest(
    sizes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, path = TreeRows(tree_of(100)), tmp_path / "s"
    write_zarr(rows, tmp_path / "undisturbed", shard_rows=10)
    break_off(path, rows, shard_rows=10)
    kept = [part for part in range(10) if all((path / name / "c" / str(part)).exists() for name in NAMES)]
    assert 0 < len(kept) < 10
    again = TreeRows(rows.tree)
    with caplog.at_level(logging.INFO, "loadax"):
        write_zarr(again, path, **sizes, resume=True)
    assert f"kept {len(kept)} of 10 parts" in caplog.text
    assert "the store is complete when all are" not in caplog.text  # there is one process
    assert {position // 10 for position in again.asked} == set(range(10)) - set(kept)
    assert files(path) == files(tmp_path / "undisturbed")


def shard_files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file() and "/c/" in each.as_posix())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "long": lambda path: path.write_bytes(path.read_bytes() + b"0"),
    "first bit": lambda path: flip(path, 0),
    "middle bit": lambda path: flip(path, path.stat().st_size // 2),
    "last bit": lambda path: flip(path, -1),
    "another shard": lambda path: path.write_bytes(b"x" * 1000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_resume_writes_damaged_parts_anew(damage: str, tmp_path: Path) -> None:
    rows, path = TreeRows(tree_of(60)), tmp_path / "s"
    write_zarr(rows, path, shard_rows=10, chunk_rows=2)
    whole = files(path)
    (path / "loadax.json").rename(path / "loadax.partial.json")
    shards = shard_files(path)
    for number in (1, 9, 17):
        DAMAGES[damage](shards[number])
    again = TreeRows(rows.tree)
    write_zarr(again, path, shard_rows=10, chunk_rows=2, resume=True)
    assert files(path) == whole
    parts = {int(shards[number].relative_to(path).parts[2]) for number in (1, 9, 17)}
    assert {position // 10 for position in again.asked} == parts


def test_a_finished_store_is_left_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows, path = TreeRows(tree_of(100)), tmp_path / "s"
    write_zarr(rows, path)
    before = files(path)
    with caplog.at_level(logging.INFO, "loadax"):
        write_zarr(TreeRows(rows.tree, fails_at=0), path, resume=True)
    assert "finished already" in caplog.text
    # Its writer was stopped between the manifest and the end.
    (path / "loadax.partial.json").write_bytes(before["loadax.json"])
    (path / "loadax.part-0-of-2.json").write_text("{}")
    write_zarr(TreeRows(rows.tree, fails_at=0), path, resume=True)
    assert files(path) == before


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("other", "arguments", "message"),
    [
        (
            tree_of(60),
            {"shard_rows": 20},
            r" was started with shard_rows = 10, but now it is 20; resume with the same data and",
        ),
        (tree_of(60), {"compression": None}, r"started with compression = \"zstd\", but now it is null"),
        (tree_of(61), {}, r"started with rows = 60, but now it is 61"),
        ({"image": tree_of(60)["image"]}, {}, r"started with arrays\.more\.field = \{.*\}, but now it is null"),
        (
            tree_of(60) | {"more": {"field": np.zeros((60, 3)), "label": np.zeros(60)}},
            {},
            r"arrays\.more\.field\.shape = \[60, 300\]",
        ),
        (None, {}, r"started with data\.name = \"rows\", but now it is \"other\""),
    ],
)
def test_other_data_does_not_finish_it(
    finished: bool, other: Any, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows, path = TreeRows(tree_of(60)), tmp_path / "s"
    if finished:
        write_zarr(rows, path, shard_rows=10)
    else:
        break_off(path, rows, shard_rows=10)
    before = files(path)
    now = TreeRows(rows.tree, "other") if other is None else TreeRows(other)
    with pytest.raises(ArgumentError, match=message):
        write_zarr(now, path, **({"shard_rows": 10} | arguments), resume=True)
    assert files(path) == before


def test_a_long_difference_is_cut_short(tmp_path: Path) -> None:
    write_zarr(TreeRows(np.zeros(3), "x" * 1000), tmp_path / "s")
    with pytest.raises(ArgumentError, match=r'data\.name = "x{199}, but now it is "rows"'):
        write_zarr(TreeRows(np.zeros(3)), tmp_path / "s", resume=True)


# Several writers


def test_shares_make_the_same_store_whoever_is_last(tmp_path: Path) -> None:
    rows, path = TreeRows(tree_of(100)), tmp_path / "s"
    write_zarr(rows, tmp_path / "one", shard_rows=8)
    for index in (2, 0, 1):
        assert not (path / "loadax.json").exists()
        mine = TreeRows(rows.tree)
        write_zarr(mine, path, shard_rows=8, shard=(index, 3))
        assert {position // 8 % 3 for position in mine.asked} == {index}
    assert files(path) == files(tmp_path / "one")


def test_shares_in_threads_at_once(tmp_path: Path) -> None:
    """All begin at the same moment, again and again: nobody takes another's first steps for something foreign."""
    tree = {"x": made_up(np.int16, (40, 3))}
    write_zarr(TreeRows(tree), tmp_path / "one", shard_rows=4)
    for attempt in range(10):
        path, gate = tmp_path / f"s{attempt}", threading.Barrier(4)

        def body(index: int, path: Path = path, gate: threading.Barrier = gate) -> None:
            gate.wait(HANG)
            write_zarr(TreeRows(tree), path, shard_rows=4, shard=(index, 4))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(body, range(4)))
        assert files(path) == files(tmp_path / "one")


def test_more_shares_than_parts(tmp_path: Path) -> None:
    rows = TreeRows(made_up(np.int8, (5,)))
    for index in range(3):
        write_zarr(rows, tmp_path / "s", shard=(index, 3))
    np.testing.assert_array_equal(stored(tmp_path / "s")[""], rows.tree)


def test_a_share_that_is_not_done_leaves_the_store_half_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, path = TreeRows(made_up(np.int8, (50, 3))), tmp_path / "s"
    with caplog.at_level(logging.INFO, "loadax"):
        write_zarr(rows, path, shard_rows=5, shard=(1, 2))
    assert "process 1 of 2 is done; the store is complete when all are" in caplog.text
    with pytest.raises(SourceError, match="the store is unfinished"):
        from_zarr(path)
    with pytest.raises(ArgumentError, match=r"started with rows = 50, but now it is 49"):
        write_zarr(TreeRows(rows.tree[:49]), path, shard_rows=5, shard=(0, 2))
    # One process may also finish what several have begun.
    write_zarr(rows, path, shard_rows=5, resume=True)
    write_zarr(rows, tmp_path / "one", shard_rows=5)
    assert files(path) == files(tmp_path / "one")


# What is seen


def test_a_bar_only_when_wanted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # tqdm before 4.68 cuts the bar there
    rows = TreeRows(made_up(np.int8, (50, 3)))
    write_zarr(rows, tmp_path / "quiet")  # stderr is no terminal here
    write_zarr(rows, tmp_path / "quieter", progress=False)
    assert capfd.readouterr().err == ""
    write_zarr(rows, tmp_path / "loud", progress=True)
    assert "50.0/50.0" in capfd.readouterr().err


def test_no_thread_is_left_when_rows_fail(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    break_off(tmp_path / "s", TreeRows(tree_of(200), pause=0.001), shard_rows=10)
    new = {*threading.enumerate()} - before
    # Dask, of another test of this process, may begin threads meanwhile.
    assert not [each for each in new if not each.name.startswith(("Dask", "Tornado", "IO"))]


def test_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_zarr(TreeRows(made_up(np.int8, (5,))), os.path.join("a b", "c%20d"))  # noqa: PTH118
    assert len(stored(tmp_path / "a b" / "c%20d")[""]) == 5


def test_rows_of_a_sample_are_read_in_their_places() -> None:
    calls: list[int] = []

    def mapped(example: dict[str, Any]) -> dict[str, Any]:
        calls.append(int(example["x"][0]))
        return {"y": {"double": example["x"] * 2}, "text": str(example["x"][0])}

    data = from_arrays({"x": np.arange(300).reshape(100, 3)}).map(mapped)
    rows = Written(data.reader, data.order)
    rows.sample(9)
    rows.spec  # noqa: B018 - maps a row
    for positions in ([0], [5, 99, 0, 13, 12, 50, 1], list(range(100)), list(rows.known), [7, 7, 99, 99]):
        calls.clear()
        read = rows.read(np.array(positions))
        np.testing.assert_array_equal(read["y"]["double"], 2 * np.arange(300).reshape(100, 3)[positions])
        assert read["text"].tolist() == [str(3 * position) for position in positions]
        assert calls == [3 * position for position in positions if position not in rows.known]
