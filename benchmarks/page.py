"""How large the page of a big step is, how soon it is drawn, and how many frames a second it draws meanwhile.

    python -m benchmarks.page --layers 200 --values 250        100,000 buffers, in the Chromium of $CHROMIUM or the PATH

Frames are counted while a pointer moves over the curve and while the wheel zooms, each for some seconds. Headless
Chromium draws at 60 frames a second at the most, here without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support import browser as chromium
from tests.support.reports import synthetic

COUNT = """new Promise((done) => {
  const times = []; const end = performance.now() + %d;
  const frame = (now) => { times.push(now); %s; if (now < end) requestAnimationFrame(frame); else done(times); };
  requestAnimationFrame(frame);
})"""
STAGE = "document.getElementById('over')"
HOVER = f"""{STAGE}.dispatchEvent(new PointerEvent('pointermove', {{bubbles: true,
  clientX: {STAGE}.getBoundingClientRect().x + 90 + (times.length * 7) %% ({STAGE}.clientWidth - 110),
  clientY: {STAGE}.getBoundingClientRect().y + 150}}))""".replace("%%", "%")
ZOOM = f"""{STAGE}.dispatchEvent(new WheelEvent('wheel', {{bubbles: true, cancelable: true,
  deltaY: times.length % 120 < 60 ? -40 : 40, clientX: {STAGE}.getBoundingClientRect().x + 500,
  clientY: {STAGE}.getBoundingClientRect().y + 150}}))"""


def frames(page: chromium.Browser, act: str, milliseconds: int) -> dict[str, float]:
    """Frames a second while `act` is done in each, and the longest of 20 frames, in milliseconds."""
    times = page.run(COUNT % (milliseconds, act))
    gaps = sorted(after - before for before, after in zip(times, times[1:], strict=False))
    return {
        "frames a second": round(1000 * len(gaps) / (times[-1] - times[0]), 1),
        "slowest 5 % ms": round(gaps[int(0.95 * len(gaps))], 1),
    }


def measure(layers: int, values: int, rounds: int, milliseconds: int) -> dict[str, Any]:
    report = synthetic(layers, values)
    with tempfile.TemporaryDirectory() as folder, chromium.browser(chromium.find()) as page:
        file = Path(folder) / "page.html"
        start = time.perf_counter()
        report.html(file)
        written = time.perf_counter() - start
        paints = []
        for _ in range(rounds):
            page.open(file)
            paints.append(page.run("memgraph.painted") / 1000)
        found = {
            "buffers": page.run("memgraph.page.part.planned.count"),
            "bytes": file.stat().st_size,
            "written s": round(written, 2),
            "first paint s": round(statistics.median(paints), 3),
            "hover": frames(page, HOVER, milliseconds),
            "zoom": frames(page, ZOOM, milliseconds),
            "browser": page.call("Browser.getVersion")["product"],
            "cores": os.cpu_count(),
            "machine": platform.machine(),
        }
        assert not page.errors, page.errors
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--values", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=3000)
    if chromium.find() is None:
        sys.exit("there is no Chromium: none on the PATH, none as $CHROMIUM")
    print(json.dumps(measure(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
