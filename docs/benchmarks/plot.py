#!/usr/bin/env python3
"""Draws what docs/benchmarks/run measured: one .svg for each chapter.

usage: docs/benchmarks/plot.py DIR

DIR holds limits.json and the chapters' .json files, in Google Benchmark's format; the .svg files
go there too. A bar for each benchmark, as a rate: operations or bytes a second. The line beside
it is what the same machine can do at most, measured in the same run. Python's standard library
is enough.
"""

import json
import pathlib
import sys
from html import escape

UNITS = ("FLOP/s", "bytes/s")  # the counters' names; of a benchmark with both the first is drawn
LIMITS = {  # (unit, device) -> benchmark in limits.json, how the line is called
    ("FLOP/s", "cpu"): ("BM_limit_product_cpu", "Eigen's product"),
    ("bytes/s", "cpu"): ("BM_limit_copy_cpu", "copy"),
    ("FLOP/s", "cuda"): ("BM_limit_multiply_add_cuda", "multiply-adds"),
    ("bytes/s", "cuda"): ("BM_limit_copy_cuda", "copy"),
}
LEFT, WIDTH, ROW, TOP = 430, 420, 18, 54


def measured(path):
    """[(name, unit, rate)] of one file, without what failed or has no rate. Empty if nothing ran."""
    rows = []
    for run in json.loads(path.read_text() or '{"benchmarks": []}')["benchmarks"]:
        if run.get("error_occurred") or run.get("aggregate_name", "median") != "median":
            continue
        unit = next((unit for unit in UNITS if unit in run), None)
        if unit:
            name = run["name"].removeprefix("BM_")
            for noise in ("/real_time", "/manual_time", "/iterations:5", "/iterations:20"):
                name = name.replace(noise, "")
            rows.append((name, unit, float(run[unit])))
    return rows


def limit_of(limits, name, unit):
    device = "cuda" if "cuda" in name else "cpu"
    benchmark, title = LIMITS[unit, device]
    rate = next((r for n, u, r in limits if n.startswith(benchmark.removeprefix("BM_"))), None)
    return rate, title


def text(x, y, words, anchor="start", size=11, colour="#222"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{colour}">{escape(words)}</text>'
    )


def rate_text(rate, unit):
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= factor:
            return f"{rate / factor:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"


def bar(y, name, unit, rate, limit, title):
    """One row. The bar is relative to the limit: without one there is only the number."""
    share = rate / limit if limit else 0.0
    length = WIDTH * min(share, 1.3) / 1.3
    parts = [
        text(LEFT - 8, y + 12, name, "end"),
        f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{ROW - 5}" fill="#4878a8"/>',
    ]
    label = rate_text(rate, unit)
    if limit:
        x = LEFT + WIDTH / 1.3
        parts.append(
            f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + ROW}" stroke="#c03028" '
            'stroke-width="2"/>'
        )
        label += f", {100 * share:.3g} % of {title}"
    parts.append(text(LEFT + WIDTH + 8, y + 12, label))
    return parts


def draw(chapter, rows, limits, context):
    height = TOP + ROW * len(rows) + 14
    machine = f"{context.get('gpu') or context['host_name']}, {context['date'][:10]}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 250}" height="{height}" '
        'font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(12, 20, f"{chapter} ({machine})", size=14),
        text(12, 38, "red line: what this machine can do at most, measured in the same run", size=10),
    ]
    for i, (name, unit, rate) in enumerate(rows):
        parts += bar(TOP + ROW * i, name, unit, rate, *limit_of(limits, name, unit))
    return "\n".join(parts + ["</svg>", ""])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    if not (folder / "limits.json").is_file():
        sys.exit(f"error: {folder} has no limits.json: docs/benchmarks/run makes it")
    limits = measured(folder / "limits.json")
    context = json.loads((folder / "limits.json").read_text())["context"]
    for path in sorted(folder.glob("*.json")):
        if path.stem == "limits":
            continue
        rows = measured(path)
        if rows:
            path.with_suffix(".svg").write_text(draw(path.stem, rows, limits, context))
            print(path.with_suffix(".svg"))
        else:
            print(f"{path}: nothing with a rate")


if __name__ == "__main__":
    main()
