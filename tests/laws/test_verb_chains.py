"""Law: any chain of verbs, over rows of any kind, is what the verbs do to plain lists.

So are its batches, and what has no meaning is refused.
"""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import loadax
from tests.laws import chain_checks, fuzz
from tests.laws.chain_choices import Choices, Tally
from tests.laws.chain_rows import Given, Stores
from tests.laws.chain_verbs import cut, opened
from tests.limits import examples

pytestmark = pytest.mark.filterwarnings("ignore:split\\(")  # chains of few rows have empty parts


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@settings(max_examples=examples(240), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_a_chain_of_verbs_is_what_the_verbs_do_to_lists(stores: Stores, random: Random) -> None:
    chain_checks.check(random, stores, Tally(), contract=0.05)


def test_empty_slices_are_padded(stores: Stores, tmp_path: Path) -> None:
    documents = [np.arange(length) for length in (1, 4, 2)]
    empty = cut(opened(Given("documents", loadax.from_source(documents), documents, one_by_one=True)), 0, 0, None)
    padded = [Choices(Random(seed), stores, tmp_path, Tally(), share_refused=1).pad(empty) for seed in range(20)]
    assert {(len(chain), chain.story[-1].split("(")[0]) for chain in padded} == {(0, ".pad")}


def test_as_many_chains_as_wanted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuzz.main(["--chains", "3", "--processes", "0"], hang=None) == 0
    assert "3 chains" in capsys.readouterr().out
    monkeypatch.setattr(fuzz, "check", lambda *_: 1 / 0)
    assert fuzz.main(["--chains", "2", "--seed", "7"], hang=None) == 1
    told = capsys.readouterr().out
    assert "ZeroDivisionError" in told
    assert "again: python -m tests.laws.fuzz --seed 7 --first 1 --chains 1" in told
    assert "findings: [0, 1]" in told
