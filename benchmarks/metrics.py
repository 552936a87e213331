"""Checks that Prometheus has data for the dashboard, and measures the cost of metrics.

    python benchmarks/metrics.py SOURCE... [--picture PNG] [--rounds N]

Runs `curate run --metrics` on the sources with two Ray workers. Debian's `prometheus` scrapes them
every second with the rules of infra/prometheus/. The script sends every query of
infra/grafana/curate.json for the time of the run. `--picture` draws the panels from the answers,
without Grafana. Then runs with and without `--metrics` alternate, which compares their CPU time.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from measure import CURATE, ROOT, arguments, measured, spread, tell, work_folder

PORT, PROMETHEUS_PORT = 9464, 9465
URL = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1"
RATE = "20s"
"""Replaces Grafana's $__rate_interval; covers many scrapes, one a second."""
COLOURS = ("#3274d9", "#e0752d", "#56a64b", "#e02f44", "#8f3bb8", "#b7a000", "#00a3a3", "#806eb7")
WIDE_PX, HIGH_PX, ROW_PX = 366, 120, 184


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--picture", type=Path, help="PNG of the dashboard")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default: 3)")
    options = parser.parse_args()
    with work_folder(None) as folder:
        rules = ROOT / "infra" / "prometheus" / "alerts.yml"
        subprocess.run(["promtool", "check", "rules", rules], check=True)
        subprocess.run(
            ["promtool", "test", "rules", rules.with_name("alerts_test.yml")], check=True
        )
        with prometheus(folder, rules):
            begun_s = time.time()
            command = [*CURATE, "run", *options.sources, f"{folder}/out", "--workers", "2",
                       "--metrics", str(PORT), "--core-hour-price", "0.04"]  # fmt: skip
            with subprocess.Popen(command) as process:
                check_metrics(process)
            panels = answered(begun_s, time.time())
            alerts = asked("rules")["groups"][0]["rules"]
        n_empty = [t["expr"] for p in panels for t in p["targets"] if not t["series"]]
        print(
            f"{sum(len(p['targets']) for p in panels)} queries; without data:", *n_empty, sep="\n"
        )
        print("alerts that fired:", [a["name"] for a in alerts if a["state"] != "inactive"])
        if options.picture is not None:
            draw(panels, begun_s, time.time(), options.picture)
        costs = [cost(options.sources, folder, number) for number in range(2 * options.rounds)]
    without, with_ = costs[0::2], costs[1::2]
    if costs:
        print(f"CPU-s without --metrics {spread(without)}, with {spread(with_)}")
    tell({"queries_without_data": n_empty, "cpu_s_without": without, "cpu_s_with": with_})


@contextlib.contextmanager
def prometheus(folder: Path, rules: Path) -> Iterator[None]:
    """Runs Debian's server, which scrapes and evaluates every second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "curate", "static_configs": [{"targets": [f"127.0.0.1:{PORT}"]}]}
        ],
    }
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(config))
    command = [
        "prometheus",
        f"--config.file={path}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        "--log.level=error",
    ]
    server = subprocess.Popen(command)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def check_metrics(process: subprocess.Popen[bytes]) -> None:
    """Waits for a run, and checks its metrics with promtool; exits if either fails."""
    n_checked = 0
    while process.poll() is None:
        time.sleep(5)
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read()
            subprocess.run(["promtool", "check", "metrics"], input=text, check=True)
            n_checked += 1
    if process.returncode or not n_checked:
        sys.exit(f"the run ended with {process.returncode}; {n_checked} answers were checked")
    print(f"promtool took {n_checked} answers")


def asked(path: str, **values: object) -> Any:  # noqa: ANN401
    with urllib.request.urlopen(f"{URL}/{path}?{urllib.parse.urlencode(values)}") as answer:
        return json.load(answer)["data"]


def answered(begun_s: float, ended_s: float) -> list[dict[str, Any]]:
    """Returns the panels of the dashboard, with the series of each query."""
    panels = json.loads((ROOT / "infra" / "grafana" / "curate.json").read_text())["panels"]
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("${prefix}", "curate").replace("$__rate_interval", RATE)
            answer = asked("query_range", query=query, start=begun_s, end=ended_s, step=1)
            target["series"] = answer["result"]
    return list(panels)


def cost(sources: Sequence[str], folder: Path, number: int) -> float:
    """Returns the CPU-seconds of a run; odd numbers run with metrics, scraped every second."""
    command = [*CURATE, "run", *sources, f"{folder}/cost-{number}", "--workers", "2"]
    with contextlib.ExitStack() as stack:
        if number % 2:
            command += ["--metrics", str(PORT)]
            config = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            rules = ROOT / "infra" / "prometheus" / "alerts.yml"
            stack.enter_context(prometheus(config, rules))
        spent = measured(command)
    if spent.code:
        sys.exit(spent.output)
    print(f"run {number}: {spent.cpu_s:.1f} CPU-s in {spent.wall_s:.0f} s", flush=True)
    return spent.cpu_s


def draw(panels: Sequence[dict[str, Any]], begun_s: float, ended_s: float, path: Path) -> None:
    """Draws panels with Chromium."""
    figures = "".join(figure(panel, begun_s, ended_s) for panel in panels)
    page = f"""<!doctype html><meta charset="utf-8"><style>
body {{ margin: 10px; background: #f4f5f5; font: 11px sans-serif; color: #24292e; width: 1180px;
  display: grid; grid-template-columns: repeat(3, 1fr); gap: 8px }}
figure {{ margin: 0; background: #fff; border: 1px solid #d8dadd; padding: 6px 8px }}
figcaption {{ font-weight: 600; margin-bottom: 3px }} svg {{ display: block }}
i {{ display: inline-block; width: 9px; height: 3px; margin-right: 3px; vertical-align: 3px }}
span {{ margin-right: 9px; white-space: nowrap }} text {{ font-size: 9px; fill: #6e7680 }}
</style>{figures}"""
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "page.html"
        html.write_text(page)
        rows = -(-len(panels) // 3)
        command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
                   f"--user-data-dir={folder}/profile", f"--window-size=1200,{ROW_PX * rows + 12}",
                   f"--screenshot={path.resolve()}", str(html)]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)


def figure(panel: dict[str, Any], begun_s: float, ended_s: float) -> str:
    """Returns one panel as HTML: lines, an axis, a legend."""
    series = [(name_of(t, s), s["values"]) for t in panel["targets"] for s in t["series"]]
    points = [float(value) for _, values in series for _, value in values]
    top = max(points, default=0.0) * 1.05 or 1.0
    lines, legend = [], []
    for number, (name, values) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            f"{34 + (WIDE_PX - 40) * (at - begun_s) / (ended_s - begun_s):.1f},"
            f"{HIGH_PX - 14 - (HIGH_PX - 22) * float(value) / top:.1f}"
            for at, value in values
        ]
        lines.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(places)}"/>')
        legend.append(f'<span><i style="background:{colour}"></i>{escape(name)}</span>')
    axis = "".join(
        f'<line x1="34" x2="{WIDE_PX}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e4e7eb"/>'
        f'<text x="30" y="{y + 3:.0f}" text-anchor="end">{short(top * share)}</text>'
        for share in (0, 0.5, 1)
        for y in [HIGH_PX - 14 - (HIGH_PX - 22) * share]
    )
    ends = f'<text x="34" y="{HIGH_PX - 2}">0 s</text>'
    ends += (
        f'<text x="{WIDE_PX}" y="{HIGH_PX - 2}" text-anchor="end">{ended_s - begun_s:.0f} s</text>'
    )
    shown = "".join(legend[:10]) or "<span>no data: there is no GPU</span>"
    more = f"<span>and {len(legend) - 10} more</span>" if len(legend) > 10 else ""
    picture = f'<svg width="{WIDE_PX}" height="{HIGH_PX}">{axis}{"".join(lines)}{ends}</svg>'
    title = escape(panel["title"])
    return f"<figure><figcaption>{title}</figcaption>{picture}{shown}{more}</figure>"


def name_of(target: dict[str, Any], series: dict[str, Any]) -> str:
    name = str(target["legendFormat"])
    for label, value in series["metric"].items():
        name = name.replace("{{" + label + "}}", value)
    # Prometheus omits labels without a value.
    return re.sub(r"\{\{.*?\}\}", "", name).strip()


def short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


if __name__ == "__main__":
    main()
