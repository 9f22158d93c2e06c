"""Troubleshooting quotes messages as they are."""

import re
from pathlib import Path

from docs.hooks.messages import page

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"


def test_every_quoted_message_is_raised_somewhere() -> None:
    package = Path(__file__).parents[1] / "loadax"
    source = "\n".join(path.read_text() for path in sorted(package.rglob("*.py")))
    # Adjacent string literals are one message.
    code = re.sub(r'"\s*\n\s*f?"', "", source)
    sections = PAGE.read_text().split("## Placing")[1]
    quoted = re.findall(r"^\| `([^`]+)` \|", sections, re.MULTILINE)
    assert len(quoted) > 10
    for message in quoted:
        parts = [part.strip() for part in message.split("…")]
        assert all(part in code for part in parts), message


def test_the_glossary_has_the_words_that_people_search_for() -> None:
    glossary = (PAGE.parent / "concepts" / "glossary.md").read_text()
    words = "GIL, kernel, OOM killer, round-robin, shared memory, cache, retry, timeout, backpressure, throughput"
    for word in [*words.split(", "), "straggler", "autotune", "pad", "ragged", "checkpoint", "lane", "piece", "verb"]:
        assert re.search(rf"^\| [^|]*\b{word}\b", glossary, re.MULTILINE), word


def test_all_messages_are_collected_by_error() -> None:
    section = page().split("## PartitionError")[1].split("##")[0]
    assert "- `…: its partition is None: use P() to replicate`\n" in section
