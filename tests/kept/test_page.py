"""The page of the docs that numbers the formats of saved files has the numbers that this version writes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from loadax import from_source
from loadax.loader.checkpoint import FILE
from tests.kept.chains import filtered, numbers, packed
from tests.kept.write import loader_of

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "saved-files.md"


def test_page_of_formats_has_the_numbers_that_are_written(tmp_path: Path) -> None:
    def content(path: str) -> Any:
        return json.loads((tmp_path / path).read_text())

    loader = loader_of(numbers())
    filtered(tmp_path / "filter")
    packed(tmp_path / "pack")
    numbers().cache(tmp_path / "cache", chunk_rows=4)
    from_source([np.arange(3), np.arange(5)]).cache(tmp_path / "ragged")
    written = {
        "state": loader.iterate().get_state()["version"],
        "receipt": json.loads(loader.receipt(1).to_json())["version"],
        "order": content("cache/loadax.json")["data"]["order version"],
        "index": content("filter/filter.json")["loadax index"],
        "plan": content("pack/split-16-error-0.json")["identity"]["version"],
        "store": content("cache/loadax.json")["version"],
        "ragged": content("ragged/loadax.json")["version"],
    }
    assert dict(re.findall(r"^\| (\w+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)) == {
        name: str(number) for name, number in written.items()
    }
    assert f"`{FILE}`" in PAGE.read_text()
