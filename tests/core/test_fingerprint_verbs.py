"""Nothing that is kept by the code of functions is used once a module of the user's that they reach has changed.

`cache` refuses its store, as that may have cost days; all others compute again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax import Dataset, from_source
from loadax.core.fingerprint import Fingerprint, fingerprint
from loadax.core.former import former
from loadax.errors import ArgumentError
from loadax.sharding import data_parallel
from tests.core.test_fingerprint_modules import KINDS
from tests.core.user_modules import imported

ROWS = list(range(12))


def mapped(fn: Any) -> Dataset:
    """Ragged rows, whose lengths are what a function returns."""
    return from_source(ROWS).map(lambda x: {"tokens": np.full(fn(x), x)})


def lengths_of(loader: Any) -> list[int]:
    return sorted(int(n) for step in range(len(loader)) for n in np.asarray(loader.host_batch(step)["tokens_length"]))


VERBS: dict[str, Callable[[Any, str], Any]] = {
    "filter": lambda fn, index: list(from_source(ROWS).filter(lambda x: fn(x) % 3 == 0, index=index)),
    "split_by": lambda fn, index: [list(part) for part in from_source(ROWS).split_by(fn, 0.5, index=index)],
    "cache": lambda fn, index: list(from_source(ROWS).map(fn).cache(index)),
    "cache of ragged rows": lambda fn, index: [row["tokens"].tolist() for row in mapped(fn).cache(index)],
    "group": lambda fn, index: [len(rows) for rows in from_source(ROWS).group(30, fn, index=index)],
    "flat_map": lambda fn, index: len(from_source(ROWS).flat_map(lambda x: [x] * fn(x), counts=fn, index=index)),
    "pack": lambda fn, index: mapped(fn).pack(16, index=index).read(range(3))["tokens"].tolist(),
    "Buckets": lambda fn, index: lengths_of(
        loadax.Dataloader(
            mapped(fn), loadax.Buckets("tokens", {8: 1, 16: 1}, index=index), mesh=data_parallel(jax.devices()[:1])
        )
    ),
    "a map before a filter": lambda fn, index: list(from_source(ROWS).map(fn).filter(is_odd, index=index)),
    "sample by a cache": lambda fn, index: list(
        from_source(ROWS).sample(np.array(list(from_source(ROWS).map(fn).cache(index))), 8, seed=0)
    ),
}


def is_odd(x: Any) -> bool:
    return bool(x % 2)


@pytest.mark.parametrize(
    "kind",
    [
        "a function of a helper module",
        "a member of a module",
        "an import in the function",
        "singledispatch",
        "globals()",
    ],
)
@pytest.mark.parametrize("verb", VERBS)
def test_changed_module_is_noticed(verb: str, kind: str, tmp_path: Path) -> None:
    index, one, two = str(tmp_path / "index"), *KINDS[kind]
    with imported(tmp_path / "code", one) as script:
        before = VERBS[verb](script.fn, index)
        assert VERBS[verb](script.fn, index) == before
    with imported(tmp_path / "code", two) as script:
        wanted = VERBS[verb](script.fn, str(tmp_path / "new"))
        assert wanted != before
        if "cache" not in verb:
            assert VERBS[verb](script.fn, index) == wanted
            return
        with pytest.raises(ArgumentError, match=r"was started with data.functions = .*pass overwrite=True"):
            VERBS[verb](script.fn, index)


def tokens(x: Any) -> Any:
    return {"tokens": np.full(1 + x % 3, x)}


@pytest.mark.parametrize("verb", ["filter", "pack", "cache", "ragged cache"])
def test_what_loadax_0_1_0_kept_is_known_by_its_fingerprints(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> Any:
        data = from_source(ROWS)
        match verb:
            case "filter":
                return list(data.filter(is_odd, index=tmp_path))
            case "pack":
                return data.map(tokens).pack(8, index=tmp_path).read(range(2))["tokens"].tolist()
            case "cache":
                return list(data.map(is_odd).cache(tmp_path))
            case _:
                return [row["tokens"].tolist() for row in data.map(tokens).cache(tmp_path)]

    def as_before(function: Any) -> Fingerprint:
        digest, unknown = fingerprint(function)
        return Fingerprint(former(digest), unknown)

    with monkeypatch.context() as patched:
        for module in (
            "loadax.row_index.index_identity",
            "loadax.packing.documents_identity",
            "loadax.writing.written_rows",
        ):
            patched.setattr(f"{module}.fingerprint", as_before)
        one = build()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert build() == one
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert "+" not in "".join(content.decode(errors="replace") for content in files.values() if b'"check"' in content)


def test_unfinished_pass_of_loadax_0_1_0_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_before(function: Any) -> Fingerprint:
        digest, unknown = fingerprint(function)
        return Fingerprint(former(digest), unknown)

    class Rows:
        """Rows that fail from one on, and count how often they are read."""

        reads, fails_from = 0, 600

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, row: int) -> int:
            if Rows.fails_from <= row < 900:  # a sample of rows is read first
                if row % 100:
                    raise KeyError("stop")
                return row
            Rows.reads += 1
            return row

    monkeypatch.setattr("loadax.row_index.index_identity.spread", lambda size, most: np.arange(3))
    with monkeypatch.context() as patched:
        patched.setattr("loadax.row_index.index_identity.fingerprint", as_before)
        with pytest.raises(KeyError):
            from_source(Rows()).filter(is_odd, index=tmp_path, workers=1)
    assert [*tmp_path.glob("*.parts/0.npz")]
    Rows.reads, Rows.fails_from = 0, 1000
    assert len(from_source(Rows()).filter(is_odd, index=tmp_path, workers=1)) == 500
    assert Rows.reads < 600
