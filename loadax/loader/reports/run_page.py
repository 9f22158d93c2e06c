"""The page of a run: one HTML file that needs no network.

Charts are drawn by Vega-Lite, whose browser bundle comes with `vl-convert-python`. It is compressed, since browsers
unpack gzip themselves, and the page stays below a megabyte.
"""

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from loadax.core.formatting import count_text, percent_text
from loadax.loader.reports.charts import charts
from loadax.loader.reports.run_record import RunRecord
from loadax.redaction import redact
from loadax.sources.library import require

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #55555f; --line: #d9d9e0; --page: #ffffff; --box: #f5f5f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf1; --soft: #a9a9b6; --line: #3a3a44; --page: #17171b; --box: #222228; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 1rem 1.25rem 3rem; }
h1 { font-size: 1.5rem; margin: 0.5rem 0; }
h2 { font-size: 1.1rem; margin: 1.8rem 0 0.2rem; }
p { margin: 0.2rem 0 0.5rem; overflow-wrap: anywhere; }
.verdict { border-left: 4px solid #d55e00; background: var(--box); padding: 0.6rem 0.9rem; }
.note { color: var(--soft); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 0.6rem; margin: 1rem 0; }
dl > div { background: var(--box); padding: 0.5rem 0.7rem; border-radius: 6px; }
dt { color: var(--soft); font-size: 0.85rem; }
dd { margin: 0; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.3rem 0.7rem 0.3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 4rem; }
figure { margin: 0; }
figure > div { width: 100%; }
"""

_SCRIPT = """
const unpack = async (id) => {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const draw = async (specs) => {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim();
  const axis = { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line };
  const config = {
    background: "transparent", font: "system-ui, sans-serif", view: { stroke: null }, axis,
    legend: { labelColor: ink, titleColor: ink },
  };
  const options = { actions: false, config, renderer: "canvas", ast: true };
  for (const [index, spec] of specs.entries()) {
    const box = document.getElementById(`chart-${index}`);
    await vegaEmbed(box, spec, options);
    box.querySelector("canvas").setAttribute("aria-hidden", "true");
  }
  document.body.dataset.drawn = "yes";
};
(async () => {
  const library = document.createElement("script");
  library.textContent = await unpack("library");
  document.head.append(library);
  const specs = JSON.parse(await unpack("charts"));
  await draw(specs);
  dark.addEventListener("change", () => draw(specs));
})();
"""


def run_page(records: Mapping[str, RunRecord]) -> str:
    """The page as HTML.

    Args:
        records: Records of the hosts of a run, or of several runs, by name. That of one alone is not shown.

    Raises:
        UnsupportedError: If vl-convert-python is not installed.
    """
    library = _library()
    several = len(records) > 1
    drawn = charts(records)
    first = next(iter(records.values()))
    steps = int(first.numbers[0][1].replace(",", ""))
    title = f"Run of {count_text(steps, 'step')}"
    body = [f"<h1>{_text(title)}</h1>"]
    for name, record in records.items():
        if several:
            body.append(f"<h2>{_text(name)}</h2>")
        body += _summary(record)
    for index, (name, text, _) in enumerate(drawn):
        body.append(
            f'<h2>{name}</h2><figure><figcaption class="note">{_text(text)}'
            f'</figcaption><div id="chart-{index}" role="img" '
            f'aria-label="{_text(f"{name}. {text}")}"></div></figure>'
        )
    for name, record in records.items():
        of = ""
        if several:
            of = f", {name}"
        body += _stages(record, of)
        body += _slowest(record, of)
    hosts = max((record.hosts for record in records.values()), key=len)
    body += _hosts(hosts)
    specs = json.dumps([spec for _, _, spec in drawn], separators=(",", ":"))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{_text(title)}</title><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style></head><body><main>{''.join(body)}</main>"
        f'<script type="text/plain" id="library">{library}</script>'
        f'<script type="text/plain" id="charts">{_packed(specs)}</script>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


@cache
def _library() -> str:
    """The packed library. Cached, since bundling takes a second."""
    require("the page of a run", {"vl-convert-python": "vl_convert"}, extra="report")
    import vl_convert

    return _packed(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed"))


def framed(page: str, height: int = 900) -> str:
    """A page as a frame of a notebook."""
    return (
        f'<iframe title="The run" style="width: 100%; height: {height}px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _packed(text: str) -> str:
    # without the time of packing: equal runs have equal pages
    packed = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _text(value: Any) -> str:
    return html.escape(redact(str(value)))


def _summary(record: RunRecord) -> list[str]:
    # the advice has a paragraph of its own
    finding = record.verdict.replace(f"; {record.advice}", "")
    parts = [f'<p class="verdict">{_text(finding)}</p>']
    if record.advice is not None:
        parts.append(f"<p><b>What would help:</b> {_text(record.advice)}.</p>")
    numbers = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in record.numbers
    )
    return [*parts, f"<dl>{numbers}</dl>"]


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    names = "".join(f'<th scope="col">{_text(name)}</th>' for name in header)
    lines = "".join(
        "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(header[0])}">'
        f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _stages(record: RunRecord, of: str) -> list[str]:
    if not any(record.shares.values()):
        return []
    rows = [[stage, percent_text(share)] for stage, share in record.shares.items()]
    return [
        f"<h2>Work of the loader{of}</h2>",
        _table(["stage", "share of its time"], rows),
    ]


def _slowest(record: RunRecord, of: str) -> list[str]:
    rows = []
    for piece in record.slowest:
        first = piece["step"]
        last = first + piece["steps"] - 1
        steps = f"{first:,}"
        if last > first:
            steps = f"{first:,} to {last:,}"
        named = [_row_text(row) for row in piece["rows"]]
        more = piece["count"] - len(named)
        if more > 0:
            named.append(f"and {more:,} more")
        files = sorted({row["file"] for row in piece["rows"] if row["file"]})
        milliseconds = f"{piece['seconds'] * 1000:,.1f} ms"
        rows.append([milliseconds, steps, ", ".join(named), ", ".join(files)])
    if not rows:
        return []
    header = ["time", "step", "rows", "files"]
    if not any(row[-1] for row in rows):
        header.pop()
        rows = [row[:-1] for row in rows]
    note = "Rows that one thread or worker read at once: the slowest of the run."
    return [
        f'<h2>Slowest reads{of}</h2><p class="note">{note}</p>',
        _table(header, rows),
    ]


def _row_text(row: dict[str, Any]) -> str:
    text = f"{row['row']:,}"
    if row["dataset"]:
        text = f"{row['dataset']} {text}"
    return text


def _hosts(hosts: list[list[float]]) -> list[str]:
    if len(hosts) < 2:
        return []
    rows = [
        [f"{process:.0f}", f"{step:,.0f}", percent_text(waited)]
        for process, step, waited in hosts
    ]
    note = "What each process told a few seconds before."
    return [
        f'<h2>Hosts</h2><p class="note">{note}</p>',
        _table(["process", "next step", "waits for data"], rows),
    ]
