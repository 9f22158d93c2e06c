"""mkdocs hook: writes the API pages, and adds what the site shows of the rest of the repository.

Every public object gets a page of its own, `api/TOPIC/NAME.md`, which mkdocstrings fills from the docstring, and every
topic a page with a table of its objects. An object that is in no topic fails the build.
"""

import functools
import logging
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs runs from its own folder

from docs.hooks import markup, messages, synonyms  # noqa: E402
from docs.notebooks import NOTEBOOKS  # noqa: E402
from docs.notebooks.page import page as notebook_page  # noqa: E402


class Topic(NamedTuple):
    """A group of public objects.

    Args:
        title: Title of its page.
        text: What its objects are for; Markdown.
        names: Paths of the objects; `MODULE.*` stands for all that the module defines.
    """

    title: str
    text: str
    names: tuple[str, ...]


TOPICS = {
    "data": Topic(
        "Data in and out",
        "Functions that open data as a `Dataset`, and one that writes a store. `as_dataset` says what else can be "
        "passed as data to it and to `Dataloader`, `mix`, `concat` and `zip`.",
        (
            "loadax.as_dataset",
            "loadax.from_arrays",
            "loadax.from_source",
            "loadax.from_sparse",
            "loadax.from_npy",
            "loadax.from_objects",
            "loadax.from_tokens",
            "loadax.from_documents",
            "loadax.from_tensorstore",
            "loadax.from_zarr",
            "loadax.from_array_record",
            "loadax.from_webdataset",
            "loadax.from_tfrecord",
            "loadax.from_arrow",
            "loadax.from_parquet",
            "loadax.from_jsonl",
            "loadax.from_csv",
            "loadax.from_images",
            "loadax.RandomCrop",
            "loadax.from_video",
            "loadax.from_audio",
            "loadax.from_lerobot",
            "loadax.from_huggingface",
            "loadax.from_grain",
            "loadax.from_stream",
            "loadax.write_zarr",
        ),
    ),
    "datasets": Topic(
        "Datasets",
        "A `Dataset` and its verbs, and the functions that combine several.",
        ("loadax.Dataset", "loadax.Statistics", "loadax.concat", "loadax.mix", "loadax.pack_sparse", "loadax.zip"),
    ),
    "loader": Topic(
        "Loader and iterators",
        "A `Dataloader` turns a dataset into batches on a mesh; its iterators hold the state of a run.",
        (
            "loadax.Dataloader",
            "loadax.Buckets",
            "loadax.chain",
            "loadax.DataIterator",
            "loadax.Epoch",
            "loadax.HostRows",
            "loadax.DeviceMap",
            "loadax.MaskErrors",
            "loadax.progress",
        ),
    ),
    "reports": Topic(
        "Reports and metrics",
        "What a run says of itself: throughput, waiting time, what limits it, and which rows a step was made of.",
        (
            "loadax.Stats",
            "loadax.Report",
            "loadax.Receipt",
            "loadax.ContentDigests",
            "loadax.Preflight",
            "loadax.interop.prometheus.*",
            "loadax.interop.opentelemetry.observe",
        ),
    ),
    "results": Topic(
        "Results of methods",
        "Objects that methods return and that have methods of their own. Nothing needs to import them.",
        (
            "loadax.loader.inspection.explanation.Explanation",
            "loadax.dataset_explanation.DatasetExplanation",
            "loadax.loader.inspection.check_plan.PlanCheck",
            "loadax.loader.trace.Trace",
            "loadax.loader.trace.Record",
            "loadax.plan.find.StepPosition",
            "loadax.loader.lease.Lease",
            "loadax.loader.lease.Leased",
            "loadax.interop.progress.LoaderProgress",
        ),
    ),
    "sharding": Topic(
        "Meshes and partitions",
        "Preset meshes, meshes that are only planned, and placement of data that does not come from a loader.",
        ("loadax.sharding.*",),
    ),
    "interop": Topic(
        "Grain, trainers, Ray and Pathways",
        "Adapters for Grain, Tunix, Kauldron and Levanter: see [Checkpoints and trainers](../../guides/trainers.md); "
        "for Ray: see [Passes on a cluster](../../guides/clusters.md); and for Pathways: see "
        "[Reading on other machines](../../guides/remote.md#pathways-and-other-single-controllers).",
        (
            "loadax.interop.grain.to_map_dataset",
            "loadax.interop.grain.as_grain_iterator",
            "loadax.interop.tunix.*",
            "loadax.interop.kauldron.Pipeline",
            "loadax.interop.levanter.batches",
            "loadax.interop.levanter.AsyncDataset",
            "loadax.interop.ray.executor",
            "loadax.interop.pathways.*",
        ),
    ),
    "torch": Topic(
        "PyTorch",
        "The batches of a loader as tensors: see [The same batches in PyTorch](../../guides/torch.md).",
        ("loadax.interop.torch.*",),
    ),
    "seeds": Topic(
        "Seeds and orders", "Keyed permutations and key derivation, which every order is built on.", ("loadax.seeds.*",)
    ),
    "contracts": Topic(
        "Contracts and testing",
        "The protocols that your own sources implement, and checks that they do.",
        ("loadax.Source", "loadax.testing.*", "loadax.protocols.*"),
    ),
    "errors": Topic(
        "Errors",
        "All errors of loadax are `LoadaxError`. [Troubleshooting](../../troubleshooting.md) is sorted by message.",
        ("loadax.LoadaxError", "loadax.errors.*"),
    ),
}

# What is called most; the other members follow in the order of the code.
FIRST = {
    "loadax.Dataset": ("shuffle", "map", "map_batch", "filter", "split", "pack", "pad", "cache", "read"),
    "loadax.Dataloader": ("iterate", "epochs", "__len__", "__getitem__", "rows", "explain", "spec"),
    "loadax.DataIterator": (
        "__next__",
        "get_state",
        "set_state",
        "set_weights",
        "step",
        "report",
        "stats",
        "metrics",
        "host",
        "close",
    ),
}

# Pages that live in the root of the repository, where other hosts look for them, and the skill of coding agents.
ROOT_PAGES = {
    "development/changelog.md": "CHANGELOG.md",
    "development/conduct.md": "CODE_OF_CONDUCT.md",
    "development/contributing.md": "CONTRIBUTING.md",
    "development/governance.md": "GOVERNANCE.md",
    "development/security.md": "SECURITY.md",
    "start/agents.md": "skills/loadax/SKILL.md",
}

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))

# How much a page counts in the search: guides come first, and what is of interest to developers comes last. A word in a
# title counts a thousand times as much as one in a text, so that decisions need less than a thousandth.
SEARCH = {
    "guides/": 2,
    "cookbook/": 2,
    "coming-from/torch": 10,
    "coming-from/": 2,
    "api/": 0.5,
    "benchmarks": 0.5,
    "troubleshooting/messages": 0.01,
    "decisions/": 0.0005,
    "development/": 0.0005,
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replaces the entry `api/` of the navigation with the pages of all topics; lets `--quiet` show warnings."""
    # `--strict` counts only the warnings that are logged: with `--quiet` alone, a dead link would pass.
    log = logging.getLogger("mkdocs")
    log.setLevel(min(log.level, logging.WARNING))
    objects = _objects()
    topics: list[Any] = ["api/index.md"]
    for folder, topic in TOPICS.items():
        pages = [{_name(path): _page(folder, path)} for path in objects[folder]]
        topics.append({topic.title: [f"api/{folder}/index.md", *pages]})
    for entry in config.nav or []:
        if isinstance(entry, dict) and entry.get("API") == "api/":
            entry["API"] = topics
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    objects = _objects()
    for folder, topic in TOPICS.items():
        lines = [f"# {topic.title}", "", topic.text, "", "| | |", "|---|---|"]
        for path, summary in objects[folder].items():
            name = _name(path)
            lines.append(f"| [`{_shown(folder, path)}`]({name}.md) | {summary} |")
            page = f"---\ntitle: {name}\n---\n\n::: {path}\n    options:\n      heading_level: 1\n{_members(path)}"
            files.append(File.generated(config, _page(folder, path), content=page))
        files.append(File.generated(config, f"api/{folder}/index.md", content="\n".join(lines) + "\n"))
    for page, source in ROOT_PAGES.items():
        text = re.sub(r"\]\(docs/", "](../", (ROOT / source).read_text("utf-8"))
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "troubleshooting/messages.md", content=messages.page()))
    for notebook in NOTEBOOKS:
        markdown, pictures = notebook_page(notebook)
        files.append(File.generated(config, _site_pages()[_path(notebook)], content=markdown))
        files.append(File.generated(config, f"examples/{notebook.name}", abs_src_path=str(notebook)))
        for name, png in pictures.items():
            files.append(File.generated(config, f"examples/{name}", content=png))
    for results in RESULTS:
        files.append(File.generated(config, _site_pages()[_path(results)], abs_src_path=str(results)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Writes the topics into the first page of the API, turns plain Markdown into the site's, and helps the search."""
    uri = page.file.src_uri
    boost = next((boost for start, boost in SEARCH.items() if uri.startswith(start)), 1)
    page.meta.setdefault("search", {"boost": boost})
    if uri in synonyms.SYNONYMS:
        page.meta["tags"] = synonyms.SYNONYMS[uri].split()
    if uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if not uri.startswith(("api/", "decisions/", "development/")):
        markdown = markup.references(markdown, _names())
    markdown = markup.links(markup.pictures(markdown), uri, _site_pages())
    if uri != "api/index.md":
        return markdown
    lines = ["| | |", "|---|---|"]
    for folder, objects in _objects().items():
        links = " · ".join(f"[`{_shown(folder, path)}`]({folder}/{_name(path)}.md)" for path in objects)
        lines.append(f"| [{TOPICS[folder].title}]({folder}/index.md) | {links} |")
    return markdown.replace("<!-- topics -->", "\n".join(lines))


def _members(path: str) -> str:
    """The options that order the members of an object, where some come first.

    Raises:
        PluginError: for a name in `FIRST` that the object does not have.
    """
    if path not in FIRST:
        return ""
    found = griffe.load("loadax", search_paths=[ROOT])[path.removeprefix("loadax.")].final_target.members
    shown = [name for name, member in found.items() if member.docstring and not re.match("_[^_]|__new__", name)]
    if missing := set(FIRST[path]) - set(shown):
        raise PluginError(f"docs/hooks/reference.py puts members of {path} first that it lacks: {sorted(missing)}")
    members = [*FIRST[path], *(name for name in shown if name not in FIRST[path])]
    return f"      group_by_category: false\n      members: {members}\n"


def _site_pages() -> dict[str, str]:
    """What the site adds to `docs/`, by the files of the repository that it shows."""
    pages = {source: page for page, source in ROOT_PAGES.items()}
    pages |= {_path(notebook): f"examples/{notebook.stem}.md" for notebook in NOTEBOOKS}
    return pages | {_path(results): f"assets/results/{results.name}" for results in RESULTS}


def _path(file: Path) -> str:
    return str(file.relative_to(ROOT))


@functools.cache
def _names() -> dict[str, str]:
    return {path: summary for objects in _objects().values() for path, summary in objects.items()}


def _page(folder: str, path: str) -> str:
    return f"api/{folder}/{_name(path)}.md"


def _shown(folder: str, path: str) -> str:
    """Path of an object in tables; nobody imports results of methods."""
    return _name(path) if folder == "results" else path.removeprefix("loadax.")


def _name(path: str) -> str:
    """Name of the page of an object; adapters have their module in it, since several have `batches`."""
    return path.removeprefix("loadax.interop.") if path.startswith("loadax.interop.") else path.rpartition(".")[2]


def _objects() -> dict[str, dict[str, str]]:
    """The first sentence of each object's docstring, by topic and path.

    Raises:
        PluginError: for a public object in no topic, or one without a docstring.
    """
    package = griffe.load("loadax", search_paths=[ROOT])
    shown: set[str] = set()
    objects: dict[str, dict[str, str]] = {}
    for folder, topic in TOPICS.items():
        objects[folder] = {}
        for pattern in topic.names:
            for path in _expanded(package, pattern):
                found = package[path.removeprefix("loadax.")]
                final = found.final_target if found.is_alias else found
                if final.path in shown:  # `loadax.LoadaxError` is in `loadax.errors`, too
                    continue
                shown.add(final.path)
                if final.docstring is None:
                    raise PluginError(f"{path} has no docstring")
                objects[folder][path] = final.docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    modules = {"errors", "seeds", "sharding", "testing"}
    missing = [
        name
        for name in package.exports or ()
        if name not in modules and package[str(name)].final_target.path not in shown
    ]
    if missing:
        raise PluginError(f"docs/hooks/reference.py names no topic for {missing}")
    return objects


def _expanded(package: Any, pattern: str) -> list[str]:
    if not pattern.endswith(".*"):
        return [pattern]
    module = package[pattern.removeprefix("loadax.").removesuffix(".*")]
    names = module.exports or [
        name
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and member.docstring
    ]
    return [f"{module.path}.{name}" for name in names]
