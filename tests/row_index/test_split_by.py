"""`split_by`: groups never leak, and keep their side."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax import Dataset, from_arrays, from_source
from loadax.errors import ArgumentError, LeafError, LeafTypeError
from loadax.row_index.groups import word_of
from tests.limits import examples
from tests.row_index.filters import GROUPS, data, rows_of, user

KEYS: dict[str, Any] = {
    "leaf": "user",
    "path": "['user']",
    "int": lambda example: int(example["user"]),
    "numpy": lambda example: np.int32(example["user"]),
    "array": lambda example: np.asarray(example["user"]),
    "text": user,
    "bytes": lambda example: user(example).encode(),
}
keys = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())


def groups(dataset: Dataset) -> set[int]:
    return {int(GROUPS[row]) for row in rows_of(dataset)}


@keys
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_the_sides_share_no_group_and_miss_no_row(key: Any, fraction: float) -> None:
    first, rest = data().split_by(key, fraction, seed=1)
    assert sorted(rows_of(first) + rows_of(rest)) == list(range(500))
    assert not groups(first) & groups(rest)
    assert abs(len(groups(first)) - 60 * fraction) < 5 * (60 * fraction * (1 - fraction)) ** 0.5


def test_the_same_number_is_the_same_group_whatever_gave_it() -> None:
    sides = [rows_of(data().split_by(KEYS[name], 0.5)[0]) for name in ("leaf", "path", "int", "numpy", "array")]
    assert all(side == sides[0] for side in sides)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, -1, 2**63 - 1, 5, 6, 7, 8, 9]), min_size=1, max_size=30),
    st.integers(0, 20),
    st.sampled_from([0.2, 0.5, 0.8]),
    st.integers(-2, 2),
)
def test_a_group_keeps_its_side_when_rows_are_appended(users: list[int], more: int, fraction: float, seed: int) -> None:
    values = np.array(users + [each % 11 for each in range(more)])
    before, after = (from_arrays({"u": part}).split_by("u", fraction, seed) for part in (values[: len(users)], values))
    for one, two in zip(before, after, strict=True):
        assert rows_of(one) == [row for row in rows_of(two) if row < len(users)]
    sides = [{int(values[row]) for row in rows_of(side)} for side in after]
    assert not sides[0] & sides[1]


def test_seeds_cut_in_other_ways_and_a_second_split_cuts_anew() -> None:
    assert len({tuple(rows_of(data().split_by("user", 0.5, seed)[0])) for seed in range(10)}) == 10
    train, rest = data().split_by("user", 0.5)
    valid, test = rest.split_by("user", 0.5)
    assert len(groups(train)) + len(groups(valid)) + len(groups(test)) == 60
    assert groups(valid)
    assert groups(test)


def test_names_of_leaves_further_down() -> None:
    nested = from_arrays({"meta": {"user": GROUPS, "pair": (GROUPS, GROUPS + 1)}})
    for key in ("meta.user", "['meta']['user']", "meta.pair.0"):
        assert rows_of(nested.split_by(key, 0.5)[0]) == rows_of(data().split_by("user", 0.5)[0])


def test_texts_as_leaves_and_documents_of_any_length() -> None:
    names = from_source(
        [{"name": f"user {group}", "words": np.zeros(row % 5)} for row, group in enumerate(GROUPS.tolist())]
    )
    assert rows_of(names.split_by("name", 0.5)[0]) == rows_of(data().split_by(user, 0.5)[0])


def test_words_are_pinned() -> None:
    """They decide who trains and who tests: a new version must not move anybody."""
    expected = {
        0: word_of(np.int8(0)),
        True: word_of(1),
        "a": word_of(np.str_("a")),
        b"a": word_of(np.bytes_(b"a")),
    }
    assert {key: word_of(key) for key in expected} == expected
    assert [word_of(key) for key in (0, -1, 2**64, "a", b"a", b"")] == WORDS
    assert len(set(WORDS)) == 6
    assert word_of(1.5) is None


PINNED_FOLD = [1, 3, 9, 10, 11, 12, 18, 25, 28, 35, 36, 51]

WORDS = [
    5144621170569512392,
    194490740229443116,
    8655631220873656306,
    11050384098040582435,
    7296770900550836673,
    9345259916757514875,
]


def test_one_index_serves_every_fraction_and_seed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "loadax")
    first = data().split_by("user", 0.9, index=tmp_path / "i")
    again = data().shuffle(0).split_by("user", 0.5, 7, index=tmp_path / "i")
    assert groups(first[0]) != groups(again[0])
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["written", "read"]
    assert rows_of(again[1]) == rows_of(data().shuffle(0).split_by("user", 0.5, 7)[1])
    other = data().split_by("x", 0.5, index=tmp_path / "i")
    assert rows_of(other[0]) == rows_of(data().split_by("x", 0.5)[0])


@keys
@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("given", [2, 7, 60, [40, 19, 1]])
def test_folds_share_no_group_and_miss_no_row(key: Any, contiguous: bool, given: Any) -> None:
    folds = data().split_by(key, given, contiguous=contiguous)
    assert sorted(row for fold in folds for row in rows_of(fold)) == list(range(500))
    assert [len(groups(fold)) for fold in folds] == (given if isinstance(given, list) else even(given))
    for one, other in itertools.combinations(folds, 2):
        assert not groups(one) & groups(other)
    shuffled = data().shuffle(3).split_by(key, given, contiguous=contiguous)
    assert [sorted(rows_of(fold)) for fold in shuffled] == [rows_of(fold) for fold in folds]


def even(parts: int) -> list[int]:
    """Numbers of 60 groups in some parts, as even as can be."""
    return [len(part) for part in np.array_split(np.arange(60), parts)]


def test_folds_depend_on_the_seed_alone_and_are_pinned() -> None:
    folds = [sorted(groups(fold)) for fold in data().split_by("user", 5)]
    assert folds == [sorted(groups(fold)) for fold in data().split_by("user", (12,) * 5)]
    assert folds == [sorted(groups(fold)) for fold in data().split_by("user", [12] * 5)]
    assert folds[0] == PINNED_FOLD
    assert len({tuple(rows_of(data().split_by("user", 5, seed)[0])) for seed in range(10)}) == 10
    # The first fold has the lowest hashes, as the first part of a fraction.
    first = groups(data().split_by("user", 0.5)[0])
    assert groups(data().split_by("user", [len(first), 60 - len(first)])[0]) == first
    again = data().split_by("user", 2)[0].split_by("user", 2)
    assert [len(groups(fold)) for fold in again] == [15, 15]


def test_folds_are_told_apart_by_states() -> None:
    runs = [data().split_by("user", 5, contiguous=contiguous) for contiguous in (False, True)]
    facts = [str(fold.order_facts) for folds in (*runs, data().split_by("user", 5, 1)) for fold in folds]
    assert len({*facts}) == 15
    assert facts[:5] == [str(fold.order_facts) for fold in data().split_by("user", 5)]


def test_a_gap_of_groups_between_folds() -> None:
    by_day = from_arrays({"day": np.arange(100) // 10})
    folds = by_day.split_by("day", 3, contiguous=True, gap=2)
    assert [sorted({row // 10 for row in rows_of(fold)}) for fold in folds] == [[0, 1], [4, 5], [8, 9]]


def test_states_name_the_halves_by_bools_and_folds_by_numbers() -> None:
    """As those of before, which go on: the name of a part is in the state of its order."""
    scattered = from_arrays({"day": np.repeat([0, 1, 2, 0, 1, 2, 3, 3], 5)})
    cases: list[tuple[Any, list[Any]]] = [(0.5, [True, False]), (2, [0, 1]), ([2, 2], [0, 1])]
    for fraction, names in cases:
        rules = [str(part.order_facts) for part in scattered.split_by("day", fraction, contiguous=True)]
        for rule, name in zip(rules, names, strict=True):
            assert f", 0, {name}, '" in rule, rule


def test_a_side_may_be_empty() -> None:
    sides = from_arrays({"u": np.zeros(5, int)}).split_by("u", 0.5)
    assert sorted(map(len, sides)) == [0, 5]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "nobody",
            (
                r"key='nobody' is not the name of one leaf; "
                r"pass one of \['image', 'score', 'user'\], or a function"
            ),
        ),
        (
            "image",
            r"key='image' is uint8\[2\], not an integer or text; pass a function",
        ),
        ("score", r"key='score' is float32\[\]"),
        (3, "key=3: pass the name of a leaf, or a function of one example"),
    ],
)
def test_keys_that_can_not_be_used(key: Any, message: str) -> None:
    dataset = from_arrays({"user": np.arange(4), "image": np.zeros((4, 2), np.uint8), "score": np.zeros(4, np.float32)})
    with pytest.raises(ArgumentError, match=message):
        dataset.split_by(key, 0.5)


@pytest.mark.parametrize("key", [1.5, None, (1, 2), [1], np.ones(2)])
def test_what_a_function_must_not_give(key: Any) -> None:
    with pytest.raises(LeafTypeError, match=r"split_by: .*<lambda>.* is .* for row 0; return an int, a str or bytes"):
        data().split_by(lambda example: key, 0.5)


def test_a_leaf_of_other_objects() -> None:
    with pytest.raises(
        LeafTypeError,
        match=r"split_by: leaf 'who' is np.float64\(1.5\) for row 1; return an int, a str or bytes",
    ):
        from_source([{"who": "a"}, {"who": 1.5}]).split_by("who", 0.5)


def test_fractions_and_seeds_that_can_not_be_used() -> None:
    with pytest.raises(ArgumentError, match="fraction=1: pass a number between 0 and 1"):
        data().split_by("user", 1)
    with pytest.raises(ArgumentError, match="seed=None: pass an int"):
        data().split_by("user", 0.5, None)  # type: ignore[arg-type]


def test_a_function_that_can_not_be_recognised_is_asked_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data().split_by(Keyed(), 0.5, index=tmp_path / "i")
    assert "can't be detected" in caplog.text
    advice = "make such objects in a function with @functools.cache, and call it where they are used"
    assert caplog.messages[0].endswith(advice)
    for _ in range(2):
        caplog.clear()
        data().split_by(by_cached_object, 0.5, index=tmp_path / "j")
    assert not caplog.messages


@functools.cache
def keyed() -> Any:
    return Keyed()


def by_cached_object(row: Any) -> Any:
    return keyed()(row)


class Keyed:
    def __call__(self, example: Any) -> int:
        return int(example["user"])


def test_leaf_of_rows_with_other_leaves_is_looked_up_by_name() -> None:
    users = np.random.default_rng(0).integers(0, 10, 60).tolist()
    rows = [{"user": user} if number % 3 else {"first": 7, "user": user} for number, user in enumerate(users)]
    parts = from_source(rows).split_by("user", 0.5)
    same = from_source([{"user": user} for user in users]).split_by("user", 0.5)
    for part, expected in zip(parts, same, strict=True):
        assert rows_of(part) == rows_of(expected)
    with pytest.raises(LeafError, match=r"row 1: leaf 'user' is None or missing, but the first row has it"):
        from_source([{"user": 1}, {"first": 1}]).split_by("user", 0.5)
