"""The page of a run in headless Chromium: it draws itself from a file, without messages, barriers or a network."""

import importlib.util
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from loadax.loader.reports.run_page import run_page
from loadax.loader.reports.run_record import RunRecord, read_record
from tests.limits import until
from tests.scripts import browser
from tests.scripts.test_site import AUDIT, MEASURE, WIDTHS

AXE = importlib.util.find_spec("axe_playwright_python")

pytestmark = pytest.mark.skipif(
    AXE is None or not browser.installed(),
    reason="needs the extra docs, and Debian's packages chromium and chromium-driver",
)

FETCHED = """
return performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith("data:") && !name.startsWith("blob:"));
"""
PIXELS = 'return document.querySelector("#chart-4 canvas").toDataURL();'
ZOOM = """
const box = document.querySelector("#chart-4 canvas");
box.scrollIntoView();
const at = box.getBoundingClientRect();
const place = { clientX: at.left + at.width / 2, clientY: at.top + at.height / 2, bubbles: true, cancelable: true };
box.dispatchEvent(new PointerEvent("pointermove", place));
box.dispatchEvent(new WheelEvent("wheel", { ...place, deltaY: -400 }));
"""


def a_record(folder: Path) -> RunRecord:
    data = from_arrays({"x": np.arange(2048)}).shuffle(seed=0).map(lambda row: row)
    with Dataloader(data, 8).iterate() as batches:
        for _ in batches:
            time.sleep(0.001)
        batches.report(hosts=True).save(folder / "run.json")
    return read_record(folder / "run.json")


def changed(chromium: browser.Browser, before: str) -> bool:
    now: str = chromium.run(PIXELS)
    return now != before


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hosts", [1, 2])
def test_page_draws_zooms_and_has_no_barriers(tmp_path: Path, hosts: int) -> None:
    record = a_record(tmp_path)
    page = tmp_path / "run.html"
    page.write_text(run_page({f"process {host}": record for host in range(hosts)}))
    assert AXE is not None
    axe = Path(str(AXE.origin)).with_name("axe.min.js").read_text("utf-8")
    (tmp_path / "profile").mkdir()
    with browser.Browser(tmp_path / "profile") as chromium:
        for scheme in ("light", "dark"):
            chromium.prefer(scheme)
            for width in WIDTHS:
                chromium.resize(width)
                chromium.open(page.as_uri())
                until(lambda: chromium.run("return document.body.dataset.drawn") == "yes")
                assert chromium.run("return document.querySelectorAll('canvas').length") == 5
                assert chromium.run(MEASURE) == []
                assert chromium.run(FETCHED) == []
                before = chromium.run(PIXELS)
                chromium.run(ZOOM)
                until(partial(changed, chromium, before))
                chromium.run(axe)
                assert chromium.run(AUDIT) == []
                assert chromium.messages() == []
