"""The built site in headless Chromium.

Nothing is broken, nothing is wider than the page, nothing is fetched from elsewhere, axe-core finds no barrier, and the
search finds the page of each term. Runs on the site that the environment variable `SITE` names, as `.ci/run` does after
`mkdocs build`; needs Debian's packages `chromium` and `chromium-driver`.
"""

import functools
import http.server
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.limits import HANG
from tests.scripts import browser

SITE = os.environ.get("SITE")
WIDTHS = (1366, 390)
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(SITE is None, reason="set SITE to a folder that mkdocs built")

# What is wrong with the page, and where its links lead to.
LOOK = """
const text = (element) => element.textContent.trim().slice(0, 60);
const all = (selector) => [...document.querySelectorAll(selector)];
return {
    ids: all("[id], a[name]").map((element) => element.id || element.name),
    links: all("a[href]").map((link) => link.href),
    edits: all("a[rel=edit]").map((link) => link.href),
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

# The theme makes code that scrolls focusable in a frame after it was laid out.
LAID_OUT = f"""
const begun = performance.now();
const scrolls = (code) => code.scrollWidth > code.clientWidth && code.tabIndex < 0;
return new Promise((done) => {{
    const look = () => {{
        const waiting = [...document.querySelectorAll("pre > code")].some(scrolls);
        if (waiting && performance.now() - begun < {HANG * 250}) {{ requestAnimationFrame(look); }} else {{ done(); }}
    }};
    look();
}});
"""

# Rules of WCAG 2.2, levels A and AA.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
AUDIT = f"""
return axe.run(document, {{runOnly: {RULES}, resultTypes: ["violations"]}}).then((result) => result.violations.flatMap(
    (rule) => rule.nodes.map((node) => `${{rule.id}}: ${{node.target}}: ${{node.failureSummary}}`)));
"""

# Types a term, and returns the pages in the list of results as soon as that has not changed for a moment.
SEARCH = """
const list = document.querySelector(".md-search-result__list");
return new Promise((done) => {
    let timer;
    const watch = new MutationObserver(() => {
        clearTimeout(timer);
        timer = setTimeout(() => {
            watch.disconnect();
            const links = list.querySelectorAll(":scope > .md-search-result__item > a:first-of-type");
            done([...links].map((link) => new URL(link.href).pathname.slice(1)));
        }, 20);
    });
    watch.observe(list, {childList: true, subtree: true});
    const box = document.querySelector(".md-search__input");
    box.value = TERM;
    box.dispatchEvent(new Event("keyup"));
});
"""

# What people type, by the page that they look for: the names of STYLE and of other loaders.
TERMS = {
    "api/datasets/Dataset/": ["filter", "cache"],
    "api/loader/Epoch/": ["epoch"],
    "benchmarks/": ["benchmark"],
    "coming-from/grain/": ["grain", "IterDataset", "random_map"],
    "coming-from/hugging-face/": ["huggingface", "hugging face", "interleave_datasets", "load_dataset"],
    "coming-from/tf-data/": ["tf.data", "interleave", "padded_batch", "from_generator"],
    "coming-from/torch/": [
        "torch",
        "collate",
        "collate_fn",
        "sampler",
        "drop_last",
        "pin_memory",
        "DistributedSampler",
    ],
    "concepts/": ["deterministic", "reproducible", "position"],
    "concepts/glossary/": ["autotune", "backpressure", "OOM", "OOM killer", "retry", "round-robin", "kernel"],
    "cookbook/evaluation/": ["evaluation"],
    "cookbook/launch/": ["SLURM", "kubernetes", "tpu", "gpu", "deadlock"],
    "cookbook/loss-spike/": ["loss spike"],
    "cookbook/nnx/": ["flax", "nnx"],
    "guides/command_line/": ["command line", "verify"],
    "guides/chunks/": ["lanes", "block shuffle"],
    "guides/clusters/": ["dask", "executorlib"],
    "guides/device/": ["device_map", "keep_on_device", "augmentation", "bfloat16"],
    "guides/hosts/": ["straggler", "stall", "hang"],
    "guides/images/": ["images", "jpeg"],
    "guides/video/": ["video", "mp4", "audio", "wav"],
    "guides/episodes/": ["episodes", "groups"],
    "guides/sparse/": ["anndata", "sparse matrix"],
    "guides/preflight/": ["NaN"],
    "guides/statistics/": ["normalise", "standard deviation", "quantiles"],
    "cookbook/robotics/": ["lerobot", "robotics"],
    "start/which-function/": ["safetensors", "which function opens"],
    "guides/meshes/": ["mesh", "shard", "sharding", "PartitionSpec", "Explicit axes"],
    "guides/orders/": [
        "shuffle",
        "batch size",
        "curriculum",
        "mixture",
        "pack",
        "packing",
        "pad",
        "padding",
        "microbatches",
        "ragged",
    ],
    "guides/preemption/": ["preemption", "SIGTERM"],
    "guides/speed/": ["bottleneck", "GIL", "num_workers", "profiling", "prometheus", "throughput", "worker", "workers"],
    "guides/object-storage/": ["s3", "bucket", "timeout"],
    "guides/sources/": ["hdf5", "h5py", "handle"],
    "guides/storage/": ["bytes", "webdataset", "tfrecord", "zarr", "npy", "megatron"],
    "guides/streams/": ["streaming", "IterableDataset", "generator"],
    "guides/tables/": ["parquet", "jsonl", "csv", "pandas", "null", "row group"],
    "guides/trainers/": ["checkpoint", "orbax", "strings", "maxtext", "kauldron", "tunix", "levanter"],
    "start/install/": ["install"],
    "start/something-else/": ["mosaicml", "dali"],
    "start/tutorial/": ["prefetch", "resume", "dtype"],
}
FIRST = 4  # results that a reader looks at

# What strangers typed in a trial, and the pages that answer: one of them comes first.
SEARCHES = {
    "shuffle buffer": ["guides/chunks/", "start/defaults/", "coming-from/tf-data/"],
    "drop last": ["start/tutorial/", "coming-from/torch/"],
    "collate": ["coming-from/torch/"],
    "tfrecord": ["guides/storage/"],
    "sharding": ["guides/meshes/"],
    "hang": ["guides/hosts/", "troubleshooting/"],
    "resume": ["start/tutorial/"],
    "deterministic": ["concepts/"],
    "augment random key": ["guides/random/", "examples/images/", "guides/orders/", "guides/device/"],
    "class imbalance": ["examples/images/", "guides/orders/"],
    "with replacement": ["guides/orders/", "api/datasets/Dataset/"],
    "replay": ["guides/orders/", "cookbook/rl-prompts/"],
    "offline RL": ["guides/orders/"],
    "keras": ["guides/trainers/"],
    "image folder": ["guides/images/"],
    "GIL": ["guides/speed/"],
    "spawn": ["guides/clusters/", "troubleshooting/"],
    "notebook": ["examples/"],
    "process_index": ["cookbook/launch/"],
    "early stop": ["cookbook/evaluation/"],
    "gradient accumulation": ["guides/orders/"],
    "weights sampler": ["coming-from/torch/"],
    "parquet glob": ["guides/tables/"],
    "OOM": ["troubleshooting/", "concepts/glossary/"],
    "num_workers 0": ["guides/speed/", "start/tutorial/"],
    "pin memory": ["coming-from/torch/"],
    "bucket by length": ["guides/buckets/", "coming-from/tf-data/"],
    "HF": ["coming-from/hugging-face/"],
    "validation": ["cookbook/evaluation/", "guides/splits/"],
    # What a second trial searched in vain, or found on another page (docs/hooks/synonyms.py).
    "albumentations": ["guides/random/"],
    "equinox": ["cookbook/nnx/"],
    "haiku": ["cookbook/nnx/"],
    "pmap": ["guides/meshes/"],
    "dashboard": ["guides/speed/"],
    "mlflow": ["guides/speed/"],
    "tensorboard": ["guides/speed/"],
    "why is my training slow": ["guides/speed/", "troubleshooting/"],
    "minio": ["guides/object-storage/"],
    "egress costs": ["guides/costs/"],
    "dollars": ["guides/costs/"],
    "netcdf": ["cookbook/weather/"],
    "time series": ["cookbook/weather/"],
    "timestamps": ["cookbook/weather/", "cookbook/robotics/", "guides/video/"],
    "normalize": ["guides/statistics/"],
    "normalise": ["guides/statistics/"],
    "standardize": ["guides/statistics/"],
    "decord": ["guides/video/"],
    "video": ["guides/video/"],
    "FITS": ["start/which-function/"],
    "astropy": ["start/which-function/"],
    "anndata": ["guides/sparse/"],
    "h5ad": ["guides/sparse/"],
    "scipy csr": ["guides/sparse/"],
    "stratified": ["guides/splits/"],
    "leakage": ["guides/splits/"],
    "holdout": ["guides/splits/"],
    "k-fold": ["guides/splits/"],
    "cross-validation": ["guides/splits/"],
    "imbalanced": ["guides/orders/"],
    "plot order": ["guides/orders/"],
    "order picture": ["guides/orders/"],
    "class weights": ["guides/orders/", "examples/images/"],
    "reshuffle": ["guides/chunks/", "guides/orders/"],
    "float16": ["guides/device/"],
    "mixed precision": ["guides/device/"],
    "skip steps": ["cookbook/loss-spike/"],
    "bad steps": ["cookbook/loss-spike/"],
    "ctrl-c": ["guides/preemption/"],
    "dead host": ["guides/preemption/"],
    "out of memory": ["troubleshooting/"],
    "does not match the sharding": ["troubleshooting/"],
    "None": ["guides/tables/"],
    "mac": ["start/install/"],
    "license": ["development/support/"],
    "licence": ["development/support/"],
    "citation": ["development/support/"],
    "color": ["guides/images/"],
    "multi-slice": ["guides/slices/"],
    "DCN": ["guides/slices/"],
    "NUMA": ["guides/hardware/"],
    "arm64": ["guides/hardware/", "development/support/"],
}


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for many files

    def log_message(self, *_: object) -> None:
        pass


class _LittleToSearch(_Handler):
    """The site with a search that knows one page: each page that is opened makes its index, longer than it loads."""

    def do_GET(self) -> None:
        if self.path != "/search/search_index.json":
            super().do_GET()
            return
        index = json.loads(Path(str(SITE), self.path[1:]).read_text("utf-8"))
        body = json.dumps(index | {"docs": index["docs"][:1]}).encode()
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve(handler: type[_Handler]) -> Iterator[str]:
    """Serves the site; gives its URL."""
    assert SITE is not None
    assert Path(SITE, "index.html").exists(), f"SITE={SITE} has no index.html; build it with `mkdocs build`"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=SITE)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join(HANG)


@pytest.mark.timeout(900)
def test_every_page_is_whole_in_both_widths(tmp_path: Path) -> None:
    assert SITE is not None
    assert browser.installed(), "install Debian's packages chromium and chromium-driver"
    paths = sorted(str(path.parent.relative_to(SITE)) + "/" for path in Path(SITE).rglob("index.html"))
    pages: dict[str, dict[str, Any]] = {}
    found: list[str] = []
    with serve(_LittleToSearch) as root, browser.Browser(tmp_path) as chromium:
        widths = list(WIDTHS)
        for path in paths:
            url = root + path.removeprefix("./")
            chromium.open(url)
            chromium.run(STILL)
            widths.reverse()  # it is laid out for the last width of the page before already
            for width in widths:
                chromium.resize(width)
                found += [f"{path} at {width} px: {wide}" for wide in chromium.run(MEASURE)]
            pages[url] = chromium.run(LOOK)
            for kind in ("images", "nameless", "examples", "fetched"):
                found += [f"{path}: {kind}: {one}" for one in pages[url][kind]]
            found += [f"{path}: console: {message}" for message in chromium.messages()]
    assert pages
    found += broken_links(root, pages)
    edits = [link.partition("/edit/main/") for page in pages.values() for link in page["edits"]]
    found += [f"nothing to edit at {''.join(link)}" for link in edits if not (ROOT / link[2]).is_file()]
    assert not found, "\n".join(found)
    assert len(edits) > 20, "build the site with EDIT_URL, as .ci/run does"


@pytest.mark.timeout(900)
def test_no_page_has_barriers(tmp_path: Path) -> None:
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None, "axe-core comes with the extra docs: pip install -e '.[docs]'"
    axe = Path(str(package.origin)).with_name("axe.min.js").read_text("utf-8")
    found = []
    with serve(_LittleToSearch) as root, browser.Browser(tmp_path) as chromium:
        for page in ("", "guides/meshes/", "api/loader/Dataloader/", "benchmarks/"):
            chromium.open(root + page)
            chromium.run(STILL + axe)
            for width in WIDTHS:
                chromium.resize(width)
                chromium.run(LAID_OUT)
                for scheme in ("default", "slate"):
                    chromium.run(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")
                    found += [f"/{page} at {width} px, {scheme}: {each}" for each in chromium.run(AUDIT)]
    assert not found, "\n".join(found)


def test_the_search_finds_the_page_of_each_term(tmp_path: Path) -> None:
    missed = []
    with serve(_Handler) as root, browser.Browser(tmp_path) as chromium:
        chromium.resize(WIDTHS[0])
        chromium.open(root)
        chromium.run("document.querySelector('.md-search__input').focus()")
        wanted = [(term, [page], FIRST) for page, terms in TERMS.items() for term in terms]
        wanted += [(term, pages, 1) for term, pages in SEARCHES.items()]
        for term, pages, most in wanted:
            found = list(dict.fromkeys(chromium.run(SEARCH.replace("TERM", json.dumps(term)))))
            if not {*pages} & {*found[:most]}:
                missed.append(f"{term!r} finds {found[:FIRST]}, and not {pages} among the first {most}")
    assert not missed, "\n".join(missed)


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
