import numpy as np

from loadax import from_arrays, from_source
from loadax.loader.watch.record import FIELD, contents, sampled_rows

NOTHING = np.empty(0, np.int64)


def test_all_hosts_sample_the_same_rows_and_the_last_one() -> None:
    for rows in (1, 2, 1000, 10**9):
        sample = sampled_rows(rows)
        assert sample == sampled_rows(rows)
        assert sample[-1] == rows - 1
        assert sample[0] >= 0
        assert 1 <= len(sample) <= 3


def test_digests_are_of_the_bytes_the_dtype_and_the_text() -> None:
    def digest(values: object) -> object:
        return contents(from_source(values).reader, NOTHING)[f"{FIELD}1"][0]

    same = [np.array([1, 2])] * 2
    assert digest(same) == digest([array.copy() for array in same])
    assert len({digest([value] * 2) for value in (1, 2, 1.0, "1", "2", b"1", np.array([1]))}) == 7


def test_rows_that_cannot_be_read_and_quarantined_ones_are_left_out() -> None:
    class Broken:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, row: int) -> int:
            if row == 99:
                raise ValueError(row)
            return row

    reader = from_source(Broken()).reader
    first = sampled_rows(100)
    assert list(contents(reader, NOTHING)) == [f"{FIELD}{row}" for row in first[:-1]]
    assert list(contents(reader, np.array(first[:1]))) == [f"{FIELD}{row}" for row in first[1:-1]]


def test_maps_are_left_out() -> None:
    data = from_arrays(np.arange(10))
    assert contents(data.map(lambda x: x * 2).reader, NOTHING) == contents(data.reader, NOTHING)
