"""`pack`, from the outside: packed rows in chains of verbs and in runs, the index on disk, and what is refused."""

import json
import logging
import re
import threading
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from grain import experimental
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from loadax import Dataloader, Dataset, from_documents, from_source, mix
from loadax.errors import ArgumentError, LeafError, SourceError, StateError
from loadax.sharding import plan_mesh
from tests.limits import examples
from tests.loader.oracle import mesh_of

Array = NDArray[Any]
METHODS: tuple[Any, ...] = ("split", "best_fit", "first_fit")


def documents(count: int = 200, longest: int = 12, seed: int = 0) -> list[Array]:
    """Every token is another number, of which nothing is zero."""
    lengths = np.random.default_rng(seed).integers(0, longest + 1, count)
    return np.split(np.arange(1, lengths.sum() + 1, dtype=np.int32), np.cumsum(lengths)[:-1])


def flat(given: list[Array]) -> Dataset:
    return from_documents(np.concatenate(given), np.cumsum([0, *map(len, given)]))


def tokens_of(packed: Dataset) -> list[int]:
    """Every token, in the order of the rows."""
    rows = packed.read(range(len(packed)))
    return rows["tokens"][rows["segment_ids"] > 0].tolist()


@settings(max_examples=examples(30))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    method=st.sampled_from(METHODS),
    seq_len=st.integers(1, 12),
    kind=st.sampled_from(["flat", "listed", "two leaves"]),
)
def test_bos_is_an_entry_before_every_document(lengths: list[int], method: Any, seq_len: int, kind: str) -> None:
    """The rows are those of documents that begin with it."""
    tokens = np.split(np.arange(1, sum(lengths) + 1, dtype=np.int32), np.cumsum(lengths)[:-1])
    options: dict[str, Any] = {"method": method, "value": 5, **({} if method == "split" else {"long": "cut"})}
    if kind == "two leaves":
        examples_ = [{"tokens": each, "loss_mask": each % 3 > 0, "weight": each / 2} for each in tokens]
        begun = [
            {
                "tokens": [99, *each],
                "loss_mask": np.array([True, *(each % 3 > 0)]),
                "weight": np.array([0.5, *each / 2]),
            }
            if len(each)
            else given
            for each, given in zip(tokens, examples_, strict=True)
        ]
        got = from_source(examples_).pack(seq_len, bos={"tokens": 99, "weight": 0.5}, **options)
        expected = from_source(begun).map(lambda each: {**each, "tokens": np.array(each["tokens"], np.int32)})
    else:
        got = (flat(tokens) if kind == "flat" else from_source(tokens)).pack(seq_len, bos=99, **options)
        expected = from_source([np.array([99, *each], np.int32)[: len(each) + (len(each) > 0)] for each in tokens])
    expected = from_source([each for each in expected if len(each if kind != "two leaves" else each["tokens"])])
    got_rows, rows = got.read(range(len(got))), expected.pack(seq_len, **options)
    expected_rows = rows.read(range(len(rows)))
    assert got_rows.keys() == expected_rows.keys()
    for name, leaf in expected_rows.items():
        np.testing.assert_array_equal(got_rows[name], leaf, err_msg=name)
        assert got_rows[name].dtype == leaf.dtype
    half = seq_len // 2
    out = [np.full((len(got), seq_len - half), 7, leaf.dtype) for leaf in got_rows.values()]
    if got.source.traits.reads_columns and half:
        got.source.read_into(np.arange(len(got)), [((half, seq_len),)] * len(out), out)
        for name, leaf in zip(sorted(got_rows), out, strict=True):
            np.testing.assert_array_equal(leaf, got_rows[name][:, half:], err_msg=name)
    # Parts name entries of the documents themselves.
    for row in range(len(got)):
        for part in got.source.documents(row) or []:
            own = got_rows["tokens"][row, part.column : part.column + part.length]
            np.testing.assert_array_equal(own, tokens[part.row][part.start : part.start + part.length])


def test_bos_and_an_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = documents()
    plain, begun = (from_source(given).pack(16, index=tmp_path, bos=bos) for bos in (None, 99))
    assert tokens_of(plain) == np.concatenate(given).tolist()
    with caplog.at_level("INFO", "loadax"):
        again = from_source(given).pack(16, index=tmp_path, bos=99)
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["read", "read"], "lengths and plan"
    assert tokens_of(again) == tokens_of(begun) == [token for each in given if len(each) for token in (99, *each)]
    with pytest.raises(ArgumentError, match="is a document with its bos entry of 5, longer than seq_len=4"):
        len(from_source([np.arange(1, 5)]).pack(4, method="best_fit", bos=99))
    with pytest.raises(ArgumentError, match="bos=300 does not fit leaf 'tokens', which is uint8"):
        len(from_source([np.arange(4, dtype=np.uint8)]).pack(4, bos=300))
    with pytest.raises(ArgumentError, match="bos has the key 'x', which is not a leaf of the documents"):
        len(from_source([np.arange(4)]).pack(4, bos={"x": 1}))
    with pytest.raises(ArgumentError, match="bos='a': pass a number"):
        len(from_source([np.arange(4)]).pack(4, bos="a"))
    with Dataloader(begun, 8).iterate() as batches:
        next(batches)
        state = batches.get_state()
    with pytest.raises(StateError, match="from the saved run"):
        Dataloader(plain, 8).iterate(state)


def test_maps_come_before() -> None:
    texts = ["one", "two words", "", "three more words"]

    def tokenize(text: str) -> list[int]:
        return list(text.encode())

    packed = from_source(texts).map(tokenize).pack(8)
    assert bytes(tokens_of(packed)).decode() == "".join(texts)
    assert "4 documents packed by split into rows of 8, 87.5% full, 1 document empty and left out" in repr(packed)
    leaves = from_source([{"text": text} for text in texts]).map(
        lambda each: {"a": tokenize(each["text"]), "b": [1] * len(each["text"])}
    )
    assert sorted(leaves.pack(8).spec) == ["a", "b", "loss_mask", "positions", "segment_ids"]


def test_maps_may_write_to_their_example() -> None:
    given = documents(5)
    before = [each.copy() for each in given]

    def negate(each: Array) -> Array:
        each *= -1
        return each

    packed = from_source(given).map(negate).pack(8)
    assert tokens_of(packed) == [-token for each in before for token in each.tolist()]
    assert [each.tolist() for each in given] == [each.tolist() for each in before]


class CountedTokens:
    """A flat array in memory, of which is known how much was read."""

    far = False
    dtype = np.dtype(np.int32)

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 64 * 1000

    def gather(self, starts: Array, lengths: Array) -> Array:
        self.read += int(lengths.sum())
        return np.zeros(int(lengths.sum()), np.int32)

    def locate(self, start: int, stop: int) -> list[Any]:
        return []


def test_a_host_reads_its_part_of_the_sequence_alone() -> None:
    from loadax.sources.tokens.token_documents import DocumentSource

    tokens = CountedTokens()
    bounds = np.arange(1001) * 64
    data = from_source(DocumentSource(tokens, bounds[:-1], bounds[1:])).pack(256)
    mesh = plan_mesh({"data": 2, "seq": 4}, hosts=8, process=3)
    len(data)
    tokens.read = 0
    Dataloader(data, batch_size=8, mesh=mesh, partition=P("data", "seq")).local_rows(0)
    assert tokens.read == 0  # rows are planned from lengths alone
    loader = Dataloader(
        data,
        batch_size=8,
        mesh=mesh_of({"data": 2, "seq": 4}),
        partition={"tokens": P("data", "seq")} | dict.fromkeys(("segment_ids", "positions", "loss_mask"), P("data")),
    )
    loader[0]
    assert tokens.read == 8 * 256  # each of the devices' parts once


def described(data: Dataset) -> str:
    return json.dumps(data.order_facts)


def test_all_that_decides_the_rows_is_in_the_state() -> None:
    given = documents()
    texts = {
        described(data)
        for data in (
            flat(given).pack(16),
            flat(given).pack(17),
            flat(given).pack(16, method="best_fit"),
            flat(given).pack(16, method="best_fit", window=50),
            flat(given).pack(16, method="best_fit", long="cut"),
            flat(given).pack(16, method="first_fit"),
            flat(given).shuffle(0).pack(16),
            flat(given).shuffle(1).pack(16),
            flat(given)[:-1].pack(16),
            flat([*given[1:], given[0]]).pack(16),
            from_source(given).map(lambda each: each + 1).pack(16),
        )
    }
    assert len(texts) == 11
    assert described(from_source(given).pack(16)) == described(flat(given).pack(16))
    # Also within a mixture.
    two = [mix({"a": flat(given).pack(16, method=method)}, (1,)) for method in METHODS]
    assert len({described(each) for each in two}) == 3


@pytest.mark.parametrize("method", ["best_fit", "first_fit"])
def test_long_documents(method: Any, caplog: pytest.LogCaptureFixture) -> None:
    given = documents(longest=40)
    with pytest.raises(
        ArgumentError,
        match=r"row \d+ is a document of \d+, longer than seq_len=16, as are \d+ more of 200; pass long='cut'",
    ):
        len(flat(given).pack(16, method=method))
    first = next(number for number, each in enumerate(given[::-1]) if len(each) > 16)
    with pytest.raises(ArgumentError, match=rf"row {199 - first} is a document of {len(given[199 - first])}"):
        len(flat(given)[::-1].pack(16, method=method))
    cut = flat(given).pack(16, method=method, long="cut")
    with caplog.at_level(logging.INFO, "loadax"):
        dropped = flat(given).pack(16, method=method, long="drop")
        len(dropped)
    too_long = sum(len(each) > 16 for each in given)
    assert f"{too_long} documents too long and left out" in repr(dropped)
    assert f"{too_long} documents cut" in repr(cut)
    assert f"pack: {too_long} of 200 documents are too long and left out" in caplog.text
    assert f"pack: {sum(not len(each) for each in given)} of 200 documents are empty" in caplog.text


class Counting:
    """Documents, of which is known how many were read."""

    def __init__(self, given: list[Array]):
        self.given, self.count = given, 0

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, row: int) -> Array:
        self.count += 1
        return self.given[row]


def test_the_index_is_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = Counting(documents())
    data = from_source(source).map(lambda each: each + 1).shuffle(0)
    expected = data.pack(16, method="best_fit")
    first = data.pack(16, method="best_fit", index=tmp_path / "index")
    source.count = 0
    second = data.pack(16, method="best_fit", index=tmp_path / "index")
    assert source.count < 40  # a sample tells that the data are the same
    other_length = data.pack(20, method="best_fit", index=tmp_path / "index")  # the lengths are known already
    assert source.count < 80
    assert "not used" not in caplog.text
    for each in (first, second):
        assert described(each) == described(expected)
        assert repr(each) == repr(expected)
        np.testing.assert_array_equal(
            each.read(range(len(each)))["tokens"], expected.read(range(len(expected)))["tokens"]
        )
    assert len(other_length) < len(first)
    assert not [each for each in (tmp_path / "index").iterdir() if each.name.startswith(".")]


class Tokenizer:
    """Can't be identified, like those of most libraries."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, text: str) -> dict[str, Any]:
        self.calls += 1
        tokens = np.frombuffer(text.encode(), np.uint8)
        return {"inputs": tokens, "targets": tokens}


@pytest.mark.parametrize("seq_len", [16, {"inputs": 16, "targets": 16}], ids=["one length", "a length for each leaf"])
def test_key_identifies_the_maps_before_pack_in_an_index(
    seq_len: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["some words"[: 1 + number % 10] for number in range(3000)]

    def calls(**options: Any) -> int:
        tokenizer = Tokenizer()
        data = from_source(texts).map(tokenizer)
        packed = data.pack(seq_len, method="first_fit", progress=False, **options)
        count = tokenizer.calls
        assert str(packed.read([0, 7])) == str(data.pack(seq_len, method="first_fit", progress=False).read([0, 7]))
        return count

    assert calls(index=tmp_path) >= 3000
    (message,) = caplog.messages
    assert re.search(
        r"neither read nor written: .* of type Tokenizer\); pass key=, a text that you change with", message
    )
    caplog.clear()
    assert calls(index=tmp_path, key="v1") >= 3000
    assert calls(index=tmp_path, key="v1") < 300
    assert not caplog.messages
    assert calls(index=tmp_path, key="v2") >= 3000
    assert "(functions differs)" in caplog.text
    with pytest.raises(ArgumentError, match=r"^key=3: pass a str that you change when the maps before pack"):
        calls(index=tmp_path, key=3)
    with pytest.raises(ArgumentError, match=r"^key='v1' is for an index; pass index=, a folder, as well"):
        calls(key="v1")


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda data: data[:-1], "documents, order, contents of a sample"),
        (lambda data: data.shuffle(0), "order, contents of a sample"),
        (lambda data: from_source([each + 1 for each in documents()]).map(same), "contents of a sample, memory"),
        (lambda data: data.map(same), "maps, functions"),
        (lambda _: from_source(documents()).map(lambda each: each[::-1][::-1]), "functions"),
        (
            lambda _: from_source([each.astype(np.int16) for each in documents()]).map(same),
            "leaves, contents of a sample, memory",
        ),
    ],
)
def test_an_index_of_other_data_is_made_anew(
    change: Any, fields: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = from_source(documents()).map(same)
    data.pack(16, index=tmp_path)
    other = change(data)
    found, expected = other.pack(16, index=tmp_path), other.pack(16)
    assert f"lengths.json does not match ({fields} differs) and is not used" in caplog.text
    assert described(found) == described(expected)
    np.testing.assert_array_equal(
        found.read(range(len(found)))["tokens"], expected.read(range(len(expected)))["tokens"]
    )
    # What nobody needs any more is gone.
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json", ".npy", ".npy"]
    caplog.clear()
    other.pack(16, index=tmp_path)
    assert not caplog.text


def same(each: Array) -> Array:
    return each


def test_processes_that_share_an_index_write_the_same(tmp_path: Path) -> None:
    expected = tokens_of(from_source(documents()).pack(16))
    found: list[list[int]] = []

    def pack() -> None:
        found.extend(tokens_of(from_source(documents()).pack(16, index=tmp_path)) for _ in range(5))

    threads = [threading.Thread(target=pack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20


def test_lengths_are_read_by_threads_under_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    names: set[str] = set()

    def watched(each: Array) -> Array:
        names.add(threading.current_thread().name)
        return each

    len(from_source(documents(3000)).map(watched).pack(16, progress=True))
    assert any(name.startswith("loadax-pass") for name in names)
    assert "reading lengths" in capsys.readouterr().err
    len(from_source(documents()).pack(16, progress=False))
    flat(documents()).pack(16, progress=True)  # nothing is read
    assert capsys.readouterr().err == ""


def test_what_a_document_raises_names_its_row() -> None:
    def fails(each: Array) -> Array:
        if each.size and each[0] > 5000:
            raise RuntimeError("broken")
        return each

    given = documents(3000)
    row = next(number for number, each in enumerate(given) if each.size and each[0] > 5000)
    with pytest.raises(RuntimeError, match="broken") as caught:
        len(from_source(given).map(fails).pack(16))
    assert f"on row {row} in epoch 0" in caught.value.__notes__[0]


class Telling:
    """A source of its user's own, that says how long its documents are, and gives them one by one."""

    spec = None
    told = (3, 4, 5)

    def __len__(self) -> int:
        return 3

    def read(self, rows: Array) -> Any:
        raise AssertionError("documents are read one by one")

    def lengths(self, rows: Array) -> Array:
        return np.array(self.told)[rows]

    def examples(self, rows: Array) -> list[Array]:
        if rows.tolist() == [1, 2]:
            raise OSError("the disk is gone")
        return [np.full(row + 3, row + 1, np.int32) for row in rows.tolist()]


def test_lengths_that_are_told_are_not_read() -> None:
    packed = from_source(Telling()).pack(4)
    assert packed.read([0])["tokens"].tolist() == [[1, 1, 1, 2]]
    with pytest.raises(OSError, match="the disk is gone") as caught:
        packed.read([1])
    assert "loadax: reading 2 rows (1, 2)" in caught.value.__notes__
    wrong = Telling()
    wrong.told = (3, -4, 5)
    with pytest.raises(SourceError, match=r"Telling\.lengths gave -4 for row 1; return the length of each document"):
        len(from_source(wrong)[::-1].pack(4))
    wrong.told = (3, 9, 5)
    with pytest.raises(LeafError, match="row 1 has length 4, but had length 9 when it was packed"):
        from_source(wrong).pack(4).read([0])


class Growing:
    """A document becomes longer after a while."""

    def __init__(self) -> None:
        self.lengths = [3, 4, 5]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> Array:
        return np.ones(self.lengths[row], np.int32)


def test_documents_that_change_are_noticed() -> None:
    source = Growing()
    packed = from_source(source).pack(4)
    packed.read([0, 1])
    source.lengths[1] = 6
    with pytest.raises(
        LeafError, match="row 1 has length 6, but had length 4 when it was packed; data and maps must return the same"
    ):
        packed.read([1])


def noisy(each: Array, rng: np.random.Generator) -> Array:
    return each[: rng.integers(1, 3)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: data.pack(1 << 31), r"seq_len=2147483648: pass less than 2\^31"),
        (lambda data: data.pack(16, method="best"), "method='best': pass 'split' .*, 'best_fit' or 'first_fit'"),
        (lambda data: data.pack(16, method="best_fit", long="trim"), "long='trim': pass 'error', 'cut' or 'drop'"),
        (
            lambda data: data.pack(16, long="cut"),
            "long='cut' is for best_fit and first_fit: method='split' fills every row",
        ),
        (
            lambda data: data.pack(16, window=5),
            "window=5 is for best_fit and first_fit: method='split' fills every row",
        ),
        (lambda data: data[:0].pack(16), r"pack\(\) needs documents, but the dataset has no rows"),
        (
            lambda data: from_source([[], []]).pack(16),
            r"pack\(\): none of 2 documents has an entry; pack a dat",
        ),
        (
            lambda data: data.map(noisy, rng=True).pack(16),
            r"pack\(\) reads documents once; call pack\(\) first, then the random map",
        ),
        (
            lambda data: data.map_batch(np.negative).pack(16),
            "map_batch .* needs rows of equal shape, .* use map before pack",
        ),
        (
            lambda data: mix([np.ones((3, 4)), np.ones((3, 4))], (1, 1), stop="never").pack(16),
            r"pack\(\) of a dataset that never ends; mix with stop='first' or 'all'",
        ),
        (
            lambda data: data.pack(16, index="s3://bucket/index"),
            "index='s3://bucket/index' is a URL: pass the path of a local folder",
        ),
        (lambda data: data.pack(16, index=3), "index=3 is an int: pass the path of a local folder"),
        (
            lambda data: data.pack(16, index=__file__),
            r"index='.*test_pack\.py' is a file; pass the path of a folder",
        ),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        len(make(from_source(documents())))


def test_a_loader_of_documents_says_what_is_missing() -> None:
    with pytest.raises(SourceError, match=r"documents have different lengths .* with \.pack\(seq_len\)"):
        next(iter(Dataloader(flat(documents()), batch_size=8)))


def grain_rows(given: list[Array], seq_len: int, method: str) -> int:
    parent = grain.MapDataset.source([{"tokens": each} for each in given]).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    shape = {"tokens": seq_len}
    match method:
        case "split":
            rows = experimental.ConcatThenSplitIterDataset(parent, length_struct=shape)
        case "best_fit":
            rows = experimental.BestFitPackIterDataset(parent, length_struct=shape, num_packing_bins=64)
        case _:
            rows = experimental.FirstFitPackIterDataset(parent, length_struct=shape, num_packing_bins=64)
    return sum(1 for _ in rows)


@settings(max_examples=examples(6), deadline=None)
@given(st.sampled_from(METHODS), st.integers(0, 100), st.sampled_from([20, 50, 200]))
def test_rows_are_at_least_as_full_as_grains(method: Any, seed: int, mean: int) -> None:
    lengths = np.clip(np.random.default_rng(seed).lognormal(np.log(mean), 1, 2000).astype(int), 1, 256)
    given = [np.ones(length, np.int32) for length in lengths]
    assert len(flat(given).pack(256, method=method)) <= grain_rows(given, 256, method)


def shifted(tokens: Any) -> Any:
    return {"inputs": tokens[:-1], "targets": tokens[1:]}


SHIFTED = [shifted(np.arange(length) % 11 + 1) for length in (7, 2, 9, 5, 1, 30, 4)]
FORMS: dict[str, Any] = {
    "rows": lambda _: from_source(SHIFTED),
    "map": lambda _: from_source([np.arange(len(row["inputs"]) + 1) % 11 + 1 for row in SHIFTED]).map(shifted),
    "cached lengths": lambda _: from_source(SHIFTED),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options", [{}, {"method": "best_fit", "long": "cut"}, {"method": "first_fit", "long": "cut", "align": 2}]
)
def test_given_targets_are_all_in_the_loss_mask(form: str, options: dict[str, Any], tmp_path: Path) -> None:
    index = tmp_path / "index" if form == "cached lengths" else None
    packed = FORMS[form](tmp_path).pack(8, targets="given", index=index, **options)
    for _ in range(2):
        packed = FORMS[form](tmp_path).pack(8, targets="given", index=index, **options)
        rows = packed.read(range(len(packed)))
        np.testing.assert_array_equal(rows["loss_mask"], rows["segment_ids"] > 0)
        assert rows["loss_mask"].sum() == sum(len(row["targets"]) for row in SHIFTED)
        columns = next(Dataloader(packed, 1, partition=P(None, "data")).host_batches())
        np.testing.assert_array_equal(columns["loss_mask"], rows["loss_mask"][:1])
    other = FORMS[form](tmp_path).pack(8, **options)
    with pytest.warns(UserWarning, match="shifted"):
        len(other)
    assert other.reader.describe() != packed.reader.describe()


def test_given_targets_with_bos_and_a_loss_mask_of_the_documents() -> None:
    documents = [{**row, "loss_mask": row["targets"] % 2 == 0} for row in SHIFTED]
    packed = from_source(documents).pack(64, targets="given", bos={"inputs": 99})
    row = packed[0]
    wanted = np.concatenate([np.append(False, row["loss_mask"]) for row in documents if len(row["inputs"])])
    np.testing.assert_array_equal(row["loss_mask"][: len(wanted)], wanted)
    assert not row["loss_mask"][row["inputs"] == 99].any()


def test_warning_of_shifted_targets_and_its_advice() -> None:
    data = from_source(SHIFTED)
    with pytest.warns(UserWarning, match=r"leaf \['targets'\] of the documents is \['inputs'\] shifted .*'given'"):
        len(data.pack(8))
    len(data.pack(8, targets="given"))
    for other in (
        [{"a": np.arange(9), "b": np.arange(9)}],  # not shifted
        [{"a": np.arange(9), "b": np.arange(1, 10, dtype=np.int32)}],
        [{"a": np.ones(9, np.int32), "b": np.ones(9, np.int32)}],  # of one value
        [*SHIFTED, {"inputs": np.arange(9), "targets": np.arange(9)}],
        [{"inputs": np.arange(3), "targets": np.arange(1, 4)}],  # too short to tell
    ):
        len(from_source(other).pack(8))


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        ("gives", "targets='gives': pass None, 'shift' for rows of inputs and targets, or 'given' if documents bring"),
        (True, "targets=True: pass None, 'shift'"),
    ],
)
def test_targets_that_pack_does_not_know(targets: Any, match: str) -> None:
    for seq_len in (8, {"inputs": 8, "targets": 8}):
        with pytest.raises(ArgumentError, match=match):
            len(from_source(SHIFTED).pack(seq_len, targets=targets))
