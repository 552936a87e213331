"""What do moving previews of the report cost, and do they play in a browser?

    python benchmarks/previews.py OUT [--picture PNG]

Runs `curate report OUT` on a finished run, and compares its CPU-seconds with those of the run. Then
Debian's chromium opens the page from disk and from a server, rests the pointer on the first
preview, and moves the focus to the second.
"""

import functools
import http.server
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from measure import CURATE, arguments, measured, tell
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

STATE = "const v = arguments[0]; return [v.readyState, v.currentTime, v.paused]"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--picture", type=Path, help="PNG of the page, with the pointer")
    options = parser.parse_args()
    out = options.out.resolve()
    spent = measured([*CURATE, "report", str(out)])
    if spent.code:
        sys.exit(spent.output)
    summary = json.loads((out / "summary.json").read_text())
    sizes = [path.stat().st_size for path in (out / "report" / "previews").iterdir()]
    run_s = summary["cpu_seconds"]["total"]
    print(
        f"{len(sizes)} previews: {spent.cpu_s:.1f} CPU-s, {spent.wall_s:.0f} s, "
        f"{100 * spent.cpu_s / run_s:.1f}% of the run's {run_s:.1f} CPU-s; "
        f"{sum(sizes)} bytes, at most {max(sizes)}"
    )
    requests: list[str] = []
    played = {
        name: plays(address, options.picture)
        for name, address in (("disk", out.as_uri()), ("server", served(out, requests)))
    }
    n_loaded = len([path for path in requests if path.endswith(".mp4")])
    print(f"{played}; the server was asked for {n_loaded} previews")
    tell({"cpu_s": spent.cpu_s, "run_cpu_s": run_s, "bytes": sizes, "played": played})


def served(out: Path, requests: list[str]) -> str:
    """Serves a folder; notes what is asked for."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:  # noqa: ANN401
            requests.append(self.path)

    handler = functools.partial(Handler, directory=str(out))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def plays(address: str, picture: Path | None) -> dict[str, Any]:
    """What two previews do: how far the first got under the pointer, the second with the focus."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1300,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        browser.get(f"{address}/report/index.html")
        first, second = browser.find_elements(By.TAG_NAME, "video")[:2]
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", first)
        time.sleep(1)
        before = browser.execute_script(STATE, first)
        ActionChains(browser).move_to_element(first).perform()
        time.sleep(1.5)
        hovered = browser.execute_script(STATE, first)
        if picture is not None:
            browser.save_screenshot(str(picture))
        ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h3")).perform()
        browser.execute_script("arguments[0].focus()", second)
        time.sleep(1.5)
        left, focused = (browser.execute_script(STATE, video) for video in (first, second))
        log: Any = browser.get_log("browser")  # type: ignore[no-untyped-call]
        errors = [line["message"] for line in log if "favicon" not in line["message"]]
        names = "before", "pointer", "left", "focus", "errors"
        return dict(zip(names, (before, hovered, left, focused, errors), strict=True))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
