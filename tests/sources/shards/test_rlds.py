"""Episodes of RLDS, as TensorFlow Datasets writes them: an episode a record, a list a feature of its steps."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, LeafError
from loadax.testing import check_source
from tests.sources.shards.corpora import encoded, write_tfrecord

LENGTHS = (5, 1, 4, 7)
FEATURES: dict[str, Any] = {
    "steps/observation/image": (bytes, None),
    "steps/action": ("float32", (None, 2)),
    "steps/is_first": ("bool", None),
    "episode_metadata/file_path": bytes,
}


def image_of(episode: int, step: int) -> bytes:
    return bytes([episode, step] * 6)


def action_of(episode: int, step: int) -> list[float]:
    return [episode, step / 2]


def steps_of(episode: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"image": np.frombuffer(image, np.uint8).reshape(2, 2, 3), "action": action}
        for image, action in zip(episode["steps/observation/image"], episode["steps/action"], strict=True)
    ]


def count_steps(episode: dict[str, Any]) -> int:
    return len(episode["steps/action"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    records = [
        encoded(
            {
                "steps/observation/image": [image_of(episode, step) for step in range(length)],
                "steps/action": np.array([action_of(episode, step) for step in range(length)]).reshape(-1),
                "steps/is_first": np.array(np.arange(length) == 0, np.int64),
                "episode_metadata/file_path": [b"episode %d" % episode],
            }
        )
        for episode, length in enumerate(LENGTHS)
    ]
    return write_tfrecord(tmp_path / "robot.tfrecord", records)


def test_a_row_is_an_episode(path: Path) -> None:
    data = loadax.from_tfrecord(path, features=FEATURES)
    for episode, length in enumerate(LENGTHS):
        row = data[episode]
        steps = range(length)
        assert row["steps/observation/image"].tolist() == [image_of(episode, step) for step in steps]
        assert row["steps/action"].dtype == np.float32
        assert row["steps/action"].tolist() == [action_of(episode, step) for step in steps]
        assert row["steps/is_first"].tolist() == [step == 0 for step in steps]
        assert row["episode_metadata/file_path"] == b"episode %d" % episode
    with pytest.raises(LeafError, match="row 1"):
        data.read([0, 1])


def test_a_row_is_a_step_and_windows_stay_in_episodes(path: Path) -> None:
    steps = loadax.from_tfrecord(path, features=FEATURES).flat_map(steps_of, counts=count_steps)
    offsets = np.append(0, np.cumsum(LENGTHS))
    assert steps.offsets().tolist() == offsets.tolist()
    expected = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]
    rows = np.random.default_rng(0).permutation(len(steps))
    read = steps.read(rows)
    assert read["action"].tolist() == [action_of(*expected[row]) for row in rows]
    assert [image.tobytes() for image in read["image"]] == [image_of(*expected[row]) for row in rows]
    chunks = steps.keep("action").windows(3, within=steps.offsets(), pad="edge").read(range(len(steps)))["action"]
    for row, (episode, step) in enumerate(expected):
        last = LENGTHS[episode] - 1
        assert chunks[row].tolist() == [action_of(episode, min(step + ahead, last)) for ahead in range(3)]


@pytest.mark.processes
def test_lists_of_bytes_of_one_length_are_stacked(tmp_path: Path) -> None:
    records = [encoded({"views": [b"%d" % row, b"%d" % (2 * row)], "row": np.array([row])}) for row in range(6)]
    path = write_tfrecord(tmp_path / "views.tfrecord", records)
    data = loadax.from_tfrecord(path, features={"views": (bytes, 2), "row": "int32"})
    assert data.read([4, 1])["views"].tolist() == [[b"4", b"8"], [b"1", b"2"]]
    check_source(data.source, loader=False)
    numbers = data.map(lambda row: {"views": np.array([int(view) for view in row["views"]]), "row": row["row"]})
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    loader = loadax.Dataloader(numbers, 3, num_epochs=1, mesh=mesh)
    assert [batch["views"].tolist() for batch in loader] == [
        [[row, 2 * row] for row in range(first, first + 3)] for first in (0, 3)
    ]


def test_empty_lists_have_no_kind(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "empty.tfrecord", [encoded({"images": [], "actions": np.empty(0, np.float32)})])
    row = loadax.from_tfrecord(path, features={"images": (bytes, None), "actions": ("float32", (None, 7))})[0]
    assert (row["images"].shape, row["images"].dtype) == ((0,), object)
    assert (row["actions"].shape, row["actions"].dtype) == ((0, 7), np.float32)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (bytes, r"is 2 bytes, but features= asks for bytes; pass bytes"),
        ((bytes, 3), r"is 2 bytes, but features= asks for bytes\[3\]"),
        (("float32", (None, 2)), r"is 2 bytes, but features= asks for float32\[any length, 2\]"),
    ],
)
def test_other_lists_than_asked_for_are_named(feature: Any, message: str, tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "x.tfrecord", [encoded({"x": [b"one", b"two"], "y": np.arange(3)})])
    with pytest.raises(LeafError, match=rf"row 0 .*feature 'x' {message}"):
        loadax.from_tfrecord(path, features={"x": feature})[0]
    with pytest.raises(LeafError, match=r"feature 'y' is 3 int64, but features= asks for int32\[any length, 2\]"):
        loadax.from_tfrecord(path, features={"y": ("int32", (None, 2))})[0]
    with pytest.raises(LeafError, match=r"feature 'y' is 3 int64, but features= asks for bytes\[any length\]"):
        loadax.from_tfrecord(path, features={"y": (bytes, None)})[0]
    assert loadax.from_tfrecord(path, features={"x": (bytes, None)})[0]["x"].tolist() == [b"one", b"two"]


@pytest.mark.parametrize(
    "feature", [(bytes, (None, 2)), (bytes, -1), ("int32", (2, None)), ("int32", (None, 0)), ("int32", 2.5)]
)
def test_shapes_that_no_list_has_are_refused(feature: Any, path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"features\['x'\]=.*: pass bytes, a dtype for one number, or"):
        loadax.from_tfrecord(path, features={"x": feature})
