"""The built site in headless Chromium: nothing broken, nothing wider than the page, nothing fetched from elsewhere.

Runs on the site that the environment variable `SITE` names, as `.ci/run` does after `mkdocs build`; needs Debian's
packages `chromium` and `chromium-driver`.
"""

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.limits import HANG
from tests.scripts import browser

SITE = os.environ.get("SITE")
WIDTHS = (1366, 390)

pytestmark = pytest.mark.skipif(SITE is None, reason="set SITE to a folder that mkdocs built")

# What is wrong with the page, and where its links lead to.
LOOK = """
const text = (element) => element.textContent.trim().slice(0, 60);
const all = (selector) => [...document.querySelectorAll(selector)];
return {
    ids: all("[id], a[name]").map((element) => element.id || element.name),
    links: all("a[href]").map((link) => link.href),
    images: all("img").filter((image) => image.complete && image.naturalWidth === 0).map((image) => image.src),
    nameless: all("img:not([alt])").map((image) => image.src),
    examples: all("article p").filter((p) => p.textContent.includes(">>>") && !p.querySelector("code")).map(text),
    fetched: performance.getEntriesByType("resource").map((entry) => entry.name)
        .filter((name) => !name.startsWith(location.origin) && !name.startsWith("data:")),
};
"""

# Nothing moves while it is measured.
STILL = """
const style = document.createElement("style");
style.textContent = "* { transition: none !important; animation: none !important; }";
document.head.append(style);
"""

# What is wider than the page. A table may scroll in its own box on a phone, but not on a laptop.
MEASURE = """
const wide = [];
const page = document.documentElement;
if (page.scrollWidth > page.clientWidth) {
    wide.push(`the page: ${page.scrollWidth} of ${page.clientWidth}`);
    for (const element of document.querySelectorAll("article *")) {
        const right = element.getBoundingClientRect().right;
        if (right > page.clientWidth + 1) { wide.push(`${element.tagName} ends at ${right}`); break; }
    }
}
if (page.clientWidth > 1000) {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
        if (box.scrollWidth > box.clientWidth + 1) {
            wide.push(`table ${box.scrollWidth} of ${box.clientWidth}: ${box.textContent.trim().slice(0, 60)}`);
        }
    }
}
return wide;
"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def root() -> Iterator[str]:
    """Serves the site; gives its URL."""
    assert SITE is not None
    assert Path(SITE, "index.html").exists(), f"SITE={SITE} has no index.html; build it with `mkdocs build`"
    handler = functools.partial(_Handler, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join(HANG)


@pytest.mark.timeout(900)
def test_every_page_is_whole_in_both_widths(root: str, tmp_path: Path) -> None:
    assert SITE is not None
    assert browser.installed(), "install Debian's packages chromium and chromium-driver"
    paths = sorted(str(path.parent.relative_to(SITE)) + "/" for path in Path(SITE).rglob("index.html"))
    pages: dict[str, dict[str, Any]] = {}
    found: list[str] = []
    with browser.Browser(tmp_path) as chromium:
        for path in paths:
            url = root + path.removeprefix("./")
            chromium.open(url)
            chromium.run(STILL)
            for width in WIDTHS:
                chromium.resize(width)
                found += [f"{path} at {width} px: {wide}" for wide in chromium.run(MEASURE)]
            pages[url] = chromium.run(LOOK)
            for kind in ("images", "nameless", "examples", "fetched"):
                found += [f"{path}: {kind}: {one}" for one in pages[url][kind]]
            found += [f"{path}: console: {message}" for message in chromium.messages()]
    assert pages
    found += broken_links(root, pages)
    assert not found, "\n".join(found)


def broken_links(root: str, pages: dict[str, dict[str, Any]]) -> list[str]:
    """Links within the site to a file or an anchor that is not there."""
    broken = []
    ids = {url: {*page["ids"], "", "__top"} for url, page in pages.items()}
    for url, page in pages.items():
        for link in sorted({link for link in page["links"] if link.startswith(root)}):
            parts = urlsplit(link)
            target = f"{parts.scheme}://{parts.netloc}{parts.path}"
            if target in ids:
                if unquote(parts.fragment) not in ids[target]:
                    broken.append(f"{url}: no anchor {link}")
            elif not Path(str(SITE), unquote(parts.path).lstrip("/")).exists():
                broken.append(f"{url}: no page {link}")
    return broken
