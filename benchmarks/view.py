"""Measures `curate view` in a real browser, over any output and over many synthetic clips.

`make` writes an output as runs leave it (`million.py`), with vectors for each clip and the footage
of some clips of MEDIA. `measure` serves an output, sends requests to the server, and drives
Chromium: it plays a clip, drags a bound, marks ten clips, searches by a picture, and lists requests
to other machines. Screenshots go to the folder of --shots.

    view.py make FOLDER --media MEDIA [--clips 1000000]
    view.py measure OUT --picture FILE [--planted ID] [--shots FOLDER]
    view.py hostile

`hostile` opens a run whose sources and captions have the names of tests/hostile_names.py, and opens
each clip. It reports elements and handlers that the names injected into the page.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("OMP_NUM_THREADS", "1")

import million
import numpy as np
import pyarrow as pa
import search
import tests_path  # noqa: F401
from hostile_names import HOSTILE
from measure import arguments, tell
from searchable import searchable_out
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from curator.executor.corpus_work import CorpusWork
from curator.storage import open_store
from curator.tables.checksums import read_parquet
from curator.tables.footage_index import FootageIndex
from curator.tables.footage_store import footage_object
from curator.tables.parts import rows_to_table, to_parquet
from curator.tables.schemas import FOOTAGE_SCHEMA
from curator.tools.review.finished_run import open_finished

RECORDINGS = 16
SERVE = [sys.executable, "-c", "from curator.cli import command; command()", "view"]
MARKED = 10
"""Number of clips to mark by keyboard."""


def make(folder: Path, media: Path, n: int) -> None:
    """Makes an output of `n` clips; some kept clips show footage of MEDIA."""
    out = folder / "out"
    folder.mkdir(parents=True, exist_ok=True)
    million.run(folder, out, n, begin=True)
    store = open_store(str(out))
    kept = [
        row["clip_id"]
        for name in json.loads(store.read("summary.json"))["tables"]["clips"]
        for row in read_parquet(store, name, ["clip_id", "shard"]).to_pylist()
        if row["shard"] is not None and int(row["clip_id"][8:], 16) < search.BLOCK
    ]
    with tempfile.TemporaryDirectory() as scratch:
        planted = list(search.recordings(media, RECORDINGS, Path(scratch)))
        for clip_id, (_, frame, _) in zip(kept, planted, strict=False):
            (folder / f"{clip_id}.jpg").write_bytes(frame.read_bytes())
    clips = {
        clip_id: replace(clip, clip_id=clip_id)
        for clip_id, (clip, _, _) in zip(kept, planted, strict=False)
    }
    made = search.MadeVectors.of(n)
    for info in store.list("candidates/clips/"):
        ids = read_parquet(store, info.key, ["clip_id"])["clip_id"].to_pylist()
        first = min(int(name[8:], 16) for name in ids)
        blocks = [
            search.footage_table(made.block(at), at)
            for at in range(first, first + len(ids), search.BLOCK)
        ]
        rows = [row for block in blocks for row in block.to_pylist()] if first == 0 else []
        key = footage_object(info.key.rpartition("/")[2])
        if rows:
            rows = [_of(clips[row["clip_id"]]) if row["clip_id"] in clips else row for row in rows]
            blocks = [rows_to_table(rows, FOOTAGE_SCHEMA)]
        store.write(key, to_parquet(pa.concat_tables(blocks), key, rows_per_group=64))
    footage = replace(open_finished(str(out)).footage(), writes_index=True)
    FootageIndex([footage], CorpusWork("search"), n_clips=n)


def _of(clip: Any) -> dict[str, Any]:  # noqa: ANN401 - the footage of a clip
    vectors = clip.vectors_VD.astype(np.float16).ravel()
    return {"clip_id": clip.clip_id, "second": clip.vector_s, "vector": vectors}


@contextmanager
def served(out: str) -> Iterator[tuple[str, float]]:
    """Serves an output; yields the address with the token, and the seconds until it is printed."""
    begun = time.perf_counter()
    server = subprocess.Popen([*SERVE, out, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        yield address, time.perf_counter() - begun
    finally:
        server.terminate()
        server.wait()


class Asked:
    """Sends requests to a server as its page does."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._base = parts.netloc, parts.path.rstrip("/")

    def __call__(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        link = http.client.HTTPConnection(self._host, timeout=600)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        link.request(method, self._base + path, data if body else None)
        answer = link.getresponse()
        content = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {content}")
        return content


def milliseconds(call: Callable[[], object], times: int) -> dict[str, float]:
    """Returns median and worst time of repeated calls, in ms."""
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        spent.append(1000 * (time.perf_counter() - begun))
    return {"median": round(statistics.median(spent), 1), "worst": round(max(spent), 1)}


def asked_alone(address: str) -> dict[str, Any]:
    """Times the requests of the page without a browser."""
    ask = Asked(address)
    overview = ask("/api/overview")
    scores = [score["name"] for score in overview["scores"]][:6]
    bounds = iter(np.linspace(0.001, 0.2, 200).tolist())

    def drag() -> None:
        ask("/api/funnel", {"changes": [f"motion.min={next(bounds):.5f}"], "scores": scores})

    def page(**query: object) -> Callable[[], object]:
        return partial(ask, "/api/clips", {"changes": [], "start": 0, **query})

    drag()
    page(sort="motion")()
    first = ask("/api/clips", {"start": 0})["clips"][0]["clip_id"]
    return {
        "clips": overview["n_clips"],
        "dragged, with 6 histograms, ms": milliseconds(drag, 30),
        "page by source, ms": milliseconds(page(), 10),
        "page by a score, kept, ms": milliseconds(page(sort="motion", side="kept"), 10),
        "page by SQL, ms": milliseconds(page(where="motion > 0.3 AND luma < 0.5"), 3),
        "a clip, ms": milliseconds(partial(ask, f"/api/clip/{first}", {"changes": []}), 5),
    }


def chromium() -> webdriver.Chrome:
    """Starts headless Chromium, which logs all requests."""
    options = webdriver.ChromeOptions()
    for option in (
        "--headless=new", "--no-sandbox", "--window-size=1500,950", "--no-proxy-server",
        "--disable-background-networking", "--disable-component-update", "--no-first-run",
    ):  # fmt: skip
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    return webdriver.Chrome(options=options, service=service)


class Browsed:
    """Performs a user's actions on the page."""

    def __init__(self, driver: webdriver.Chrome, shots: Path | None) -> None:
        self._driver, self._shots = driver, shots
        self._wait = WebDriverWait(driver, 300, poll_frequency=0.02)

    def shot(self, name: str) -> None:
        """Writes a screenshot."""
        if self._shots is not None:
            self._shots.mkdir(parents=True, exist_ok=True)
            self._driver.save_screenshot(str(self._shots / f"{name}.png"))

    def cards(self) -> list[Any]:
        """Waits for clips; returns their cards."""
        return list(self._wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".clip")))

    def opened(self, clip_id: str) -> None:
        """Waits for the dialog of a clip."""
        title = "return document.querySelector('dialog[open] b')?.textContent"
        self._wait.until(lambda d: d.execute_script(title) == clip_id)

    def played(self) -> dict[str, Any]:
        """Hovers over a playable clip until its video moves, then opens the clip."""
        # Clips that are marked keep count as kept, but play only after a run has written them.
        playable = "return state.cards.findIndex((clip) => clip.can_play)"
        card = self.cards()[self._driver.execute_script(playable)]
        begun = time.perf_counter()
        ActionChains(self._driver).move_to_element(card).perform()
        moving = "const v = document.querySelector('.clip video'); return v ? v.currentTime : 0"
        self._wait.until(lambda d: d.execute_script(moving) > 0)
        spent_s = time.perf_counter() - begun
        self.shot("preview")
        ActionChains(self._driver).move_to_element(card).click().perform()
        inside = moving.replace(".clip video", "dialog video")
        self._wait.until(lambda d: d.execute_script(inside) > 0)
        self.shot("clip")
        self._driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
        return {"moves after, s": round(spent_s, 2)}

    def dragged(self, score: str) -> dict[str, Any]:
        """Drags a lower bound; returns the delays of the funnel, as the page measured them."""
        kept = "return document.querySelector('#funnel .kept td:nth-child(3)').textContent"
        before = self._driver.execute_script(kept)
        box = self._driver.find_element(By.CSS_SELECTOR, f'.chart[data-score="{score}"]')
        self._driver.execute_script("arguments[0].scrollIntoView()", box)
        self.settled()
        grip = self._wait.until(lambda _: box.find_elements(By.CSS_SELECTOR, '[data-side="min"]'))
        times: list[int] = []
        ActionChains(self._driver).click_and_hold(grip[0]).perform()
        for _ in range(8):
            ActionChains(self._driver).move_by_offset(12, 0).perform()
            time.sleep(0.3)
            times.append(int(self._driver.find_element(By.TAG_NAME, "body").get_dom_attribute(
                "data-funnel-ms") or 0))  # fmt: skip
        self.shot("dragged")
        ActionChains(self._driver).release().perform()
        after = self._wait.until(lambda d: (text := d.execute_script(kept)) != before and text)
        command = self._driver.find_element(By.ID, "command").text
        self._driver.find_element(By.ID, "reset").click()
        self.settled()
        return {"kept": [before, after], "funnel, ms": times, "command": command}

    def marked(self) -> dict[str, Any]:
        """Marks clips by keyboard, with one key each."""
        self.cards()
        body = self._driver.find_element(By.TAG_NAME, "body")
        body.send_keys(Keys.ARROW_RIGHT)
        begun = time.perf_counter()
        for number in range(MARKED):
            body.send_keys("k" if number % 3 else "d")
            self._wait.until(partial(self._has_badges, number + 1))
        spent_s = time.perf_counter() - begun
        self.shot("marked")
        return {"clips": MARKED, "s": round(spent_s, 2), "a minute": round(60 * MARKED / spent_s)}

    def _has_badges(self, n: int, driver: webdriver.Chrome) -> bool:
        marked = (
            "return [...document.querySelectorAll('#grid .badge')].filter((b) => b.textContent)"
        )
        return bool(driver.execute_script(f"{marked}.length") >= n)

    def settled(self) -> None:
        """Waits until the page has sent no request for a second."""
        asked = "return performance.getEntriesByType('resource').length"
        before = -1
        while (now := self._driver.execute_script(asked)) != before:
            before = now
            time.sleep(1)

    def found(self, picture: Path, planted: str | None) -> dict[str, Any]:
        """Searches by a picture; returns the rank of the planted clip."""
        begun = time.perf_counter()
        self._driver.find_element(By.ID, "file").send_keys(str(picture.resolve()))
        self._wait.until(lambda d: "like picture" in d.find_element(By.ID, "status").text)
        spent_s = time.perf_counter() - begun
        ids = self._driver.execute_script("return state.cards.map((clip) => clip.clip_id)")
        self.shot("by-picture")
        place = ids.index(planted) + 1 if planted in ids else None
        return {"s": round(spent_s, 2), "clips": len(ids), "place": place}

    def elsewhere(self) -> list[str]:
        """Returns the addresses on other machines that the page requested."""
        asked = []
        log: Any = self._driver.get_log("performance")
        for entry in log:
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        own = ("http://127.0.0.1:", "data:", "blob:")
        return [address for address in asked if not address.startswith(own)]


class Told(dict[str, Any]):
    """Results; each is printed as soon as it is set."""

    def __setitem__(self, name: str, value: object) -> None:
        print(f"{name:36}{value}", flush=True)
        super().__setitem__(name, value)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Serves an output, and performs a user's actions."""
    results = Told()
    with served(options.out) as (address, open_s):
        results["opens in, s"] = round(open_s, 2)
        for name, value in asked_alone(address).items():
            results[name] = value
        driver = chromium()
        try:
            begun = time.perf_counter()
            driver.get(address)
            browsed = Browsed(driver, options.shots)
            browsed.cards()
            results["first clips in the browser, s"] = round(time.perf_counter() - begun, 2)
            time.sleep(1)
            browsed.shot("page")
            results["plays"] = browsed.played()
            results["drags"] = browsed.dragged(options.score)
            results["marks"] = browsed.marked()
            for number in range(2):
                found = browsed.found(options.picture, options.planted)
                results[f"by a picture, call {number + 1}"] = found
            results["requests elsewhere"] = browsed.elsewhere()
        finally:
            driver.quit()
    return results


def hostile() -> dict[str, Any]:
    """Opens each clip of a run with hostile names in the browser."""
    names = [name.encode("utf-8", "replace").decode() for name in HOSTILE]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        ids = searchable_out(
            out, len(names), captions=dict(enumerate(names)), source_uri=[f"/f/{n}" for n in names]
        )
        with served(str(out)) as (address, _):
            driver = chromium()
            try:
                driver.get(address)
                browsed = Browsed(driver, None)
                browsed.cards()
                for clip_id in ids:
                    driver.execute_script("open(arguments[0])", clip_id)
                    browsed.opened(clip_id)
                shape = "return [...document.querySelectorAll('script, iframe, object, base')]"
                elements = driver.execute_script(f"{shape}.map((one) => one.outerHTML)")
                handlers = "return document.querySelectorAll('[onload], [onerror], [onclick]')"
                injected = driver.execute_script(f"{handlers}.length")
                return {
                    "clips": len(ids),
                    "elements": elements,
                    "injected": injected,
                    "elsewhere": browsed.elsewhere(),
                }
            finally:
                driver.quit()


def main() -> None:
    parser = arguments(__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    making = what.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--media", type=Path, required=True)
    making.add_argument("--clips", type=int, default=1_000_000)
    measuring = what.add_parser("measure")
    measuring.add_argument("out")
    measuring.add_argument("--picture", type=Path, required=True)
    measuring.add_argument("--planted", help="id of the clip that the picture shows")
    measuring.add_argument("--score", default="motion", help="score whose lower bound is dragged")
    measuring.add_argument("--shots", type=Path)
    what.add_parser("hostile")
    options = parser.parse_args()
    if options.what == "hostile":
        print(hostile())
        return
    if options.what == "make":
        make(options.folder, options.media, options.clips)
        return
    results = measure(options)
    tell(results)


if __name__ == "__main__":
    main()
