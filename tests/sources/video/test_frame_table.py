"""Frames and groups of pictures of packets, in the orders in which files store them."""

import numpy as np

from loadax.kept.index_folder import Entry
from loadax.sources.file_index import REASONS
from loadax.sources.video.frame_table import RECORDS, FrameTable, frame_table, packets_entry


def entry_of(times: list[int], keys: list[int]) -> Entry:
    """The entry of packets with these times, of which some begin keyframes."""
    return packets_entry(times, [place in keys for place in range(len(times))])


def groups(times: list[int], keys: list[int]) -> FrameTable:
    return frame_table(entry_of(times, keys))


def test_groups_are_frames_from_one_keyframe_to_the_next_in_the_order_of_display() -> None:
    table = groups([0, 3, 1, 2, 4, 7, 5, 6], [0, 4])
    assert table.times.tolist() == list(range(8))
    assert table.firsts.tolist() == [0, 4]
    assert entry_of([0, 3, 1, 2, 4, 7, 5, 6], [0, 4]).facts == {REASONS: [""]}


def test_frames_shown_before_the_keyframe_that_they_follow_belong_to_the_group_before() -> None:
    table = groups([0, 1, 4, 2, 3, 5], [0, 2])
    assert table.firsts.tolist() == [0, 4]


def test_frames_before_the_first_keyframe_are_left_out() -> None:
    table = groups([5, 6, 9, 7, 8, 10], [2])
    assert table.times.tolist() == [9, 10]


def test_keyframe_shown_before_an_earlier_one_begins_no_group() -> None:
    table = groups([0, 4, 2, 6, 7], [0, 1, 2, 3])
    assert table.firsts.tolist() == [0, 2, 3]
    assert table.times[table.firsts].tolist() == [0, 4, 6]


def test_files_whose_frames_can_not_be_told_apart_have_none() -> None:
    assert entry_of([0, 1, 1], [0]).facts[REASONS] == ["two frames are shown at the same time"]
    assert entry_of([0, 1, 2], []).facts[REASONS] == ["it has no keyframe"]
    assert len(groups([0, 1, 1], [0]).times) == len(groups([0, 1], []).times) == len(groups([], []).times) == 0


def test_files_follow_each_other() -> None:
    entries = [
        packets_entry([0, 1], [True, False]),
        packets_entry(reason="gone"),
        packets_entry([5, 6, 7], [True] * 3),
    ]
    merged = RECORDS.merge(entries)
    table = frame_table(merged)
    assert table.ends.tolist() == [2, 2, 5]
    assert table.firsts.tolist() == [0, 2, 3, 4]
    assert [table.frames_of(group) for group in range(4)] == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert table.files_of(np.arange(5)).tolist() == [0, 0, 2, 2, 2]
    assert table.seconds(np.array([1, 4])).tolist() == [1.0, 2.0]
    assert merged.facts == {REASONS: ["", "gone", ""]}
    grouped = [(group, places.tolist()) for group, places in table.by_group(np.array([3, 1, 2, 1]))]
    assert grouped == [(0, [1, 3]), (1, [2]), (2, [0])]
