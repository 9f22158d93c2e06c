"""Packing plans: every entry once, the rows of the textbook's algorithms, and what is refused."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax.core.digest import digest_values
from loadax.errors import ArgumentError
from loadax.plan.fit import fit
from loadax.plan.pack import ALL, Arrays, PackOptions, check_arrays, packed, plan_arrays
from loadax.protocols import Integers
from tests.laws.chain_verbs import Packing, packed_rows, width
from tests.limits import examples
from tests.work_counts import lines_of, peak_of

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


def arrays_of(lengths: Any, *options: Any, **how: Any) -> Arrays:
    """The arrays of a plan for documents of one length each; `options` are `PackOptions`, from the row's length on."""
    seq_len, *rest = options
    return plan_arrays(np.asarray(lengths)[:, None], PackOptions({ALL: seq_len}, *rest), **how)


def plan_of(lengths: Any, *options: Any) -> Any:
    seq_len, *rest = options
    (plan,) = packed(PackOptions({ALL: seq_len}, *rest), arrays_of(lengths, *options), np.asarray(lengths)[:, None])
    return plan


@settings(max_examples=examples(600), deadline=None)
@given(
    LENGTHS,
    st.sampled_from(["split", "best_fit", "first_fit"]),
    st.sampled_from(["cut", "drop"]),
    st.sampled_from([(1, 1), (7, 1), (12, 4), (50, 1), (60, 5)]),
    st.integers(1, 70),
    st.sampled_from([None, 1, 2, 5]),
)
def test_rows_are_those_of_a_slow_packer(
    lengths: list[int], method: Any, long: Any, sizes: tuple[int, int], window: int, most: int | None
) -> None:
    seq_len, align = sizes
    if method == "split":
        long, align, most = "error", 1, None
    if long == "drop" and not any(0 < length <= seq_len for length in lengths):
        with pytest.raises(ArgumentError, match=r"none of .* has entries and fits seq_len"):
            arrays_of(lengths, seq_len, method, long, window)
        return
    packing = Packing(seq_len, method, long, window, align, most)
    expected = packed_rows(lengths, packing)
    plan = plan_of(lengths, seq_len, method, long, window, align, most)
    assert plan.size == len(expected)
    backwards = np.arange(plan.size)[::-1]
    for rows in (backwards, *(backwards[index : index + 1] for index in range(plan.size))):
        found: list[list[Any]] = [[] for _ in rows]
        columns = dict.fromkeys(range(len(rows)), 0)
        for row, document, skip, column, length, number in zip(
            *map(np.ndarray.tolist, plan.segments(rows)), strict=True
        ):
            found[row].append((document, skip, length))
            assert number == len(found[row])
            assert column == columns[row]
            columns[row] += width((document, skip, length), packing)
        assert found == [expected[row] for row in rows]


def lognormal(count: int, longest: int, seed: int = 0) -> Integers:
    lengths = np.random.default_rng(seed).lognormal(np.log(600) - 0.5, 1, count)
    return np.clip(lengths, 1, longest).astype(np.int64)


@pytest.mark.parametrize("method", ["split", "best_fit", "first_fit"])
def test_a_million_documents_take_little_work_and_little_memory(method: Any) -> None:
    """The work of a window is that of its distinct lengths, of which ten times as many documents have hardly more."""
    long: Any = "error" if method == "split" else "cut"
    lengths = lognormal(1_000_000, 4096)
    plan = plan_of(lengths, 2048, method, long, 1 << 18)
    assert lengths.sum() / (plan.size * 2048) > 0.999
    assert peak_of(lambda: arrays_of(lengths, 2048, method, long, 1 << 18)) < 100 * len(lengths)  # bytes a document
    few, many = (
        lines_of(partial(arrays_of, lengths[:count], 2048, method, long, 1 << 18)) for count in (1 << 15, 1 << 18)
    )
    assert many < 2 * few


def test_the_cost_is_that_of_the_distinct_lengths() -> None:
    few, many = (np.tile([700, 300, 1100, 5], count) for count in (2500, 250_000))
    for best in (True, False):
        rows = fit(many, 2048, best, 2048)
        assert np.bincount(rows, weights=many).max() <= 2048
        assert lines_of(partial(fit, many, 2048, best, 2048)) == lines_of(partial(fit, few, 2048, best, 2048))


@pytest.mark.parametrize(
    ("lengths", "arguments", "message"),
    [
        ([0, 0], (4, "split", "error", 0), r"pack\(\): none of 2 documents has an entry; pack a dataset with"),
        (
            [3, 9, 4, 5],
            (4, "best_fit", "error", 9),
            (
                r"row 101 is a document of 9, longer than seq_len=4, as are 1 more of 4; "
                r"pass long='cut' .* long='drop' .* or method='split'"
            ),
        ),
        ([9, 0, 5], (4, "first_fit", "drop", 9), r"long='drop': none of 3 documents has entries and fits seq_len=4"),
    ],
)
def test_what_can_not_be_packed(lengths: list[int], arguments: tuple[int, Any, Any, int], message: str) -> None:
    seq_len, method, long, window = arguments
    with pytest.raises(ArgumentError, match=message):
        arrays_of(lengths, seq_len, method, long, window, row_of=lambda document: document + 100)


def test_plans_and_digests_stay_what_they_are() -> None:
    """Golden: a saved run goes on with the same rows. Another plan needs another PACK_VERSION."""
    lengths = np.arange(2000) ** 2 * 31 % 53
    assert digest_values(lengths) != digest_values(lengths[::-1])
    methods: list[Any] = ["split", "best_fit", "first_fit"]
    found = {
        method: digest_values(plan_of(lengths, 64, method, "error", 500).segments(np.arange(50)).documents)
        for method in methods
    }
    assert found == {"split": "a8dd11ebf0f06cc6", "best_fit": "c1e70cd072c15ede", "first_fit": "e603bffa3ac2279b"}


CHECKED: list[Any] = [("best_fit", "cut", 1), ("first_fit", "cut", 4), ("best_fit", "drop", 2), ("split", "error", 1)]


@pytest.mark.parametrize(("method", "long", "align"), CHECKED)
def test_arrays_from_elsewhere_are_checked(method: Any, long: Any, align: int) -> None:
    """What `plan_arrays` makes passes; any other value, order or number of values does not."""
    lengths = np.array([3, 0, 8, 20, 5, 1, 16, 2])
    options = PackOptions({ALL: 8}, method, long, 100, align)
    lengths = lengths[:, None]
    made = plan_arrays(lengths, options)
    check_arrays(made, lengths, options)
    for name, array in made.items():
        changes: list[Any] = [
            array[:-1],
            np.append(array, 0),
            array[::-1],
            array + 1,
            array * 0 - 1,
            array.astype("f8"),
        ]
        changes += [np.where(np.arange(len(array)) == len(array) - 1, edge, array) for edge in (-1, 7, 1 << 30)]
        for changed in changes:
            if np.array_equal(changed, array) and changed.dtype == array.dtype:
                continue
            with pytest.raises(ValueError):
                check_arrays({**made, name: changed}, lengths, options)
    with pytest.raises(ValueError):
        check_arrays(made, lengths[::-1], options)


LENGTHS_BY_LEAF = np.array([[3, 1], [0, 0], [10, 1], [4, 4], [2, 0]])
BY_LEAF = PackOptions({"inputs": 9, "targets": 5}, "best_fit", "drop", 100, most_documents=2)


def test_a_plan_of_several_lengths_passes_its_own_check() -> None:
    made = plan_arrays(LENGTHS_BY_LEAF, BY_LEAF)
    assert {name: array.tolist() for name, array in made.items()} == {"bounds": [0, 2, 3], "documents": [0, 3, 4]}
    check_arrays(made, LENGTHS_BY_LEAF, BY_LEAF)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"documents": np.array([0, 3, 3])}, "a document is missing, or in too many rows"),
        ({"documents": np.array([0, 3, 2])}, "a document is missing, or in too many rows"),
        ({"documents": np.array([0, 3, -1])}, "a document is missing, or in too many rows"),
        ({"documents": np.array([0.0, 3.0, 4.0])}, "the arrays are not flat arrays of integers"),
        ({"bounds": np.array([0, 2, 2, 3])}, "the bounds of the rows don't ascend from 0 to 3"),
        ({"bounds": np.array([1, 3])}, "the bounds of the rows don't ascend from 0 to 3"),
        ({"bounds": np.array([0, 2])}, "the bounds of the rows don't ascend from 0 to 3"),
    ],
)
def test_plans_of_several_lengths_that_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_arrays({**plan_arrays(LENGTHS_BY_LEAF, BY_LEAF), **changed}, LENGTHS_BY_LEAF, BY_LEAF)


def test_a_row_of_several_lengths_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a row is longer than \{'inputs': 8, 'targets': 4\}"):
        check_arrays(
            plan_arrays(LENGTHS_BY_LEAF, BY_LEAF),
            LENGTHS_BY_LEAF,
            BY_LEAF._replace(seq_lens={"inputs": 8, "targets": 4}),
        )
