"""The language model announces its batches, learns, goes on half-way, and keeps documents apart."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import loadax
from tests import forkserver

ROOT = Path(__file__).parents[3]
LANGUAGE_MODEL = ROOT / "examples" / "language_model.py"
STEPS = 8


def run(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return forkserver.run([LANGUAGE_MODEL, *arguments], cwd=folder, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The script, imported, with one layer in place of two: compiling takes most of the time."""
    spec = importlib.util.spec_from_file_location("language_model", LANGUAGE_MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LanguageModel.__init__.__defaults__ = 64, 4, 1
    return module


def stretches(printed: str) -> list[tuple[int, ...]]:
    """Rows and tokens that devices hold, in order."""
    parts = r"rows (\d+) to (\d+), tokens +(\d+) to +(\d+), 128 bytes"
    return sorted(tuple(map(int, part)) for part in re.findall(parts, printed))


EVERYTHING = [(row, row + 4, token, token + 16) for row in (0, 4) for token in (0, 16, 32, 48)]
RESUMED = r'the very batch that came next, from \{.*"step": 4, .*"position": 48,'


def check_last_lines(printed: str) -> None:
    waited, held_out = printed.splitlines()[-2:]
    assert re.fullmatch(r"training waited \d+\.\d+ s of \d+\.\d+ s for data \(\d+\.\d%\)", waited), printed
    assert re.fullmatch(r"\d\.\d{3} bits per byte on 16 held-out rows, where bigrams take \d\.\d{3}", held_out), printed


def test_one_process_announces_its_batches_learns_goes_on_half_way_and_fails_where_bigrams_are_better(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With short rows, and few to evaluate, in this process: `.ci/run` trains as a user does, until bigrams lose."""
    losses = tmp_path / "losses.json"
    monkeypatch.setattr(example, "SEQUENCE", 64)
    monkeypatch.setattr(example, "EVALUATED", 16)
    monkeypatch.setattr(sys, "argv", ["language_model.py", "--steps", str(STEPS), "--losses", str(losses)])
    assert example.main() == 1, "so few steps make no model that is better than bigrams"
    bits, printed = json.loads(losses.read_text()), capsys.readouterr().out
    assert len(bits) == STEPS
    assert bits[-1] < bits[0] - 1
    assert re.findall(r"from step +(\d+) on, batches are \((\d+), 64\)", printed) == [("0", "8"), ("2", "16")]
    assert stretches(printed) == EVERYTHING
    assert len(re.findall(RESUMED, printed)) == 1, printed
    check_last_lines(printed)


def test_a_first_half_that_fails_is_not_gone_on_with(tmp_path: Path) -> None:
    # The script itself has imported Optax already; the processes that it starts find this one.
    (tmp_path / "optax.py").write_text("raise ImportError('this Optax is broken')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    arguments = ["--steps", "4", "--processes", "2", "--resume-with", "1"]
    result = forkserver.run([LANGUAGE_MODEL, *arguments], cwd=tmp_path, env=environment)
    assert result.returncode == 1
    assert "this Optax is broken" in result.stderr, result.stderr
    assert "went on" not in result.stdout
    assert result.stderr.count("Traceback") <= 2, "one of each process of the first half"


@pytest.fixture(scope="module")
def model(example: ModuleType) -> nnx.Module:
    """Untrained; its operations are compiled once for all tests."""
    return example.LanguageModel(nnx.Rngs(0))


@nnx.jit
def predict(model: nnx.Module, row: dict[str, jax.Array]) -> jax.Array:
    """Scores of the next token; compiled as a whole, which takes a fraction of compiling its operations one by one."""
    return model(row)


def segments(lengths: list[int]) -> dict[str, jax.Array]:
    """One row of 64 tokens drawn at random, in segments of these lengths and padding, as `pack` gives it."""
    padding = 64 - sum(lengths)
    numbers = [np.full(length, number, np.int32) for number, length in enumerate(lengths, 1)]
    empty = np.zeros(padding, np.int32)
    tokens = np.random.default_rng(sum(lengths)).integers(1, 257, sum(lengths))
    positions = np.concatenate([*(np.arange(length) for length in lengths), empty]).astype(np.int32)
    row = {
        "inputs": np.concatenate([tokens, empty]).astype(np.uint16),
        "targets": np.concatenate([np.append(tokens[1:], 0), empty]).astype(np.uint16),
        "segment_ids": np.concatenate([*numbers, empty]),
        "positions": positions,
        "loss_mask": np.append(positions[1:] > 0, False),
    }
    return {name: jnp.asarray(leaf[None]) for name, leaf in row.items()}


def cut(row: dict[str, jax.Array], start: int, stop: int, length: int) -> dict[str, jax.Array]:
    """These tokens, and padding up to a length."""
    return {name: jnp.pad(leaf[:, start:stop], ((0, 0), (0, length - stop + start))) for name, leaf in row.items()}


def test_a_segment_of_a_packed_row_is_predicted_as_if_it_were_alone(model: nnx.Module) -> None:
    row = segments([20, 30, 9])
    together = np.asarray(predict(model, row))
    assert np.isfinite(together).all(), "padding too"
    for start, stop in ((0, 20), (20, 50), (50, 59)):
        alone = np.asarray(predict(model, cut(row, start, stop, 64)))[:, : stop - start]
        np.testing.assert_allclose(together[:, start:stop], alone, atol=1e-4)


def test_a_token_is_predicted_from_what_came_before_it_alone(model: nnx.Module) -> None:
    row = segments([20, 12])
    changed = row | {"inputs": row["inputs"].at[0, 10].add(1)}
    differs = (jnp.abs(predict(model, row) - predict(model, changed)).max(axis=-1) > 1e-6)[0]
    assert differs.tolist() == [10 <= token < 20 for token in range(64)]


def test_the_loss_counts_what_follows_inside_a_segment_and_nothing_else(example: ModuleType, model: nnx.Module) -> None:
    row = segments([20, 30, 9])
    bits, count = example.evaluate(model, row)
    chances = np.asarray(jax.nn.log_softmax(predict(model, row)))[0] / np.log(2)
    numbers, tokens = np.asarray(row["segment_ids"])[0], np.asarray(row["inputs"])[0]
    expected = [-chances[i, tokens[i + 1]] for i in range(63) if numbers[i] == numbers[i + 1] != 0]
    assert int(count) == len(expected) == 19 + 29 + 8
    assert float(bits) == pytest.approx(sum(expected), rel=1e-5)


def test_no_held_out_document_is_trained_on(example: ModuleType, tmp_path: Path) -> None:
    example.write_library(tmp_path)
    for name in ("modules", "packages"):
        trained, held_out = (set(documents(example, tmp_path / f"{name}{part}.bin")) for part in ("", "-held-out"))
        # Modules are held out whole; what is left in common are lines such as `if __name__ == "__main__":`, which many
        # modules have.
        common = trained & held_out
        assert len(held_out) > 100
        assert sum(map(len, common)) < 0.05 * sum(map(len, held_out))


def documents(example: ModuleType, file: Path) -> list[bytes]:
    tokens, offsets = np.fromfile(file, np.uint16), np.load(file.with_suffix(".npy"))
    assert (tokens[offsets[1:] - 1] == example.END).all()
    return [tokens[start : stop - 1].astype(np.uint8).tobytes() for start, stop in pairwise(offsets)]


def test_bigrams_are_counted_inside_segments(example: ModuleType) -> None:
    dataset = loadax.from_documents(np.array([1, 2, 1, 2, 3, 3]), offsets=[0, 4, 6]).pack(
        8, method="best_fit", targets="shift"
    )
    bits = example.bits_of_bigrams([dataset], dataset)
    # 1 -> 2 twice, 2 -> 1 once, 3 -> 3 once; 2 -> 3 stands between two documents and does not count. One is added to
    # each count.
    chances = np.array([3 / 259, 2 / 258, 3 / 259, 2 / 258])
    assert bits == pytest.approx(-np.log2(chances).mean())


def test_a_run_too_short_to_stop_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "--steps", "3")
    assert result.returncode == 2
    assert (
        "--steps 3: pass 4 or more, since batches grow after a quarter of them and the run stops half-way"
        in result.stderr
    ), result.stderr
