"""The page read in a real browser: its numbers are those of the report's JSON. Skipped where there is no Chromium."""

from __future__ import annotations

import dataclasses
import json

import pytest

from memgraph.base.sizes import format_size
from memgraph.facts.actions import Recompute, Save
from memgraph.planner.decisions import Event
from memgraph.reporting.lifetimes import Stuff, lifetimes
from memgraph.reporting.phrases import duration
from memgraph.reporting.plan_diff import diff
from memgraph.reporting.ranks import RankReports
from memgraph.reporting.step_figures import OutsideFigures
from tests.reporting.test_page import curve
from tests.reporting.test_plan_diff import layers, plan
from tests.reporting.test_report import EMPTY, example
from tests.reporting.test_step_report import example as step_example
from tests.support import browser as chromium
from tests.support.reports import synthetic

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium: none on the PATH, none as $CHROMIUM")
REPORT = synthetic(12, 80)


@pytest.fixture(scope="module")
def browser():
    with chromium.browser(chromium.find()) as found:
        yield found


@pytest.fixture
def page(browser, tmp_path):
    REPORT.html(tmp_path / "report.html")
    browser.errors.clear()
    browser.open(tmp_path / "report.html")
    yield browser
    assert browser.errors == []


def rows(page, table):
    """The rows of a table: what they show, and the bytes behind it."""
    script = f"""[...document.querySelectorAll('#{table} tbody tr')].map((row) =>
        [[...row.cells].map((cell) => cell.textContent), row.dataset.bytes ? Number(row.dataset.bytes) : null])"""
    return page.run(script)


def live(events, state):
    """What stands after so many events."""
    standing: dict[tuple, Event] = {}
    for event in events[:state]:
        if event.bytes > 0:
            standing[event.value, event.where] = event
        else:
            standing.pop((event.value, event.where))
    return standing.values()


def test_the_curves_are_those_of_the_json(page):
    data = json.loads(REPORT.to_json())
    level = data["baseline"] + data["to_come"]
    for name, rows_of in (("planned", data["timeline"]), ("unplanned", data["unplanned_timeline"])):
        found, total = [level], level
        for _, _, size, *_ in rows_of:
            total += size
            found.append(total)
        assert page.run(f"Array.from(memgraph.page.part.{name}.total)") == found
    assert page.run("memgraph.page.part.planned.total[memgraph.page.state]") == data["predicted_peak"]
    kinds = lifetimes(REPORT.timeline, REPORT).sums()
    for number, stuff in enumerate(Stuff):
        assert page.run(f"Array.from(memgraph.page.part.planned.byKind[{number}])")[1:] == kinds[stuff]
    times = page.run("Array.from(memgraph.page.part.planned.at)")
    assert times[1:] == pytest.approx([row[4] for row in data["timeline"]], abs=2e-9)


def test_what_is_live_at_the_peak_is_what_the_page_lists(page):
    peak = page.run("memgraph.page.state")
    wanted = sorted(live(REPORT.timeline.events, peak), key=lambda event: -event.bytes)
    assert page.run("Number(document.getElementById('moment').dataset.bytes)") == REPORT.predicted_peak
    assert format_size(REPORT.predicted_peak) in page.run("document.getElementById('moment').textContent")
    found = [(cells, size) for cells, size in rows(page, "rows") if size is not None]
    assert [size for _, size in found] == [event.bytes for event in wanted][:200]
    described = {item.name: item for item in REPORT.described}
    for cells, size in found:
        assert cells[0] == format_size(size)
        item = described.get(cells[2])
        assert item is None or (cells[3], cells[4]) == (item.module, item.operator)
    shown = sum(page.run("[...document.querySelectorAll('[data-standing]')].map((r) => Number(r.dataset.standing))"))
    assert shown == REPORT.level
    assert shown + sum(event.bytes for event in wanted) == REPORT.predicted_peak


def test_sorted_by_birth_and_by_next_use(page):
    def order(key):
        page.run(f"document.getElementById('sort').value = '{key}'")
        page.run("document.getElementById('sort').dispatchEvent(new Event('change'))")
        return page.run("[...document.querySelectorAll('#rows tr.open')].map((row) => Number(row.dataset.buffer))")

    made = lifetimes(REPORT.timeline, REPORT).buffers
    births = [made[i].birth for i in order("birth")]
    assert births == sorted(births)
    peak = page.run("memgraph.page.state")
    now = REPORT.timeline.events[peak - 1].at
    reads = {item.name: item.reads for item in REPORT.described}

    def next_use(buffer):
        end = REPORT.timeline.events[-1 if buffer.death is None else buffer.death].at
        return min((at for at in reads.get(buffer.value, ()) if now < at <= end), default=float("inf"))

    uses = [next_use(made[i]) for i in order("next")]
    assert uses == sorted(uses)


def test_a_click_chooses_the_moment_under_it_and_keys_move_it(page):
    page.run("memgraph.page.useAxis(false)")
    box = page.run("(() => { const r = document.getElementById('over').getBoundingClientRect(); return [r.x, r.y] })()")
    inner = page.run("(() => { const b = memgraph.page.chart.box; return [b.left, b.right, b.top, b.bottom] })()")
    x, y = box[0] + (inner[0] + inner[1]) / 3, box[1] + (inner[2] + inner[3]) / 2
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.mouse(kind, x, y, button="left", clickCount=1)
    state = page.run("memgraph.page.state")
    count = len(REPORT.timeline.events)
    share = ((inner[0] + inner[1]) / 3 - inner[0]) / (inner[1] - inner[0])
    assert state == pytest.approx(share * (count + 1), abs=count / 400)
    sums = [REPORT.level, *(REPORT.level + above for above in REPORT.timeline.sums())]
    assert page.run("Number(document.getElementById('moment').dataset.bytes)") == sums[state]
    page.press("ArrowRight")
    assert page.run("Number(document.getElementById('moment').dataset.bytes)") == sums[state + 1]
    page.press("p")
    assert page.run("memgraph.page.state") == sums.index(max(sums))
    page.press("t")
    assert page.run("memgraph.page.axis.timed") is True
    page.press("+")
    view = page.run("[memgraph.page.view.low, memgraph.page.view.high]")
    assert view[1] - view[0] == pytest.approx(REPORT.timeline.events[-1].at / 2, rel=0.01)
    before = page.run("getComputedStyle(document.documentElement).colorScheme")
    page.press("d")
    assert page.run("getComputedStyle(document.documentElement).colorScheme") != before


def test_a_chosen_row_says_what_is_known_of_its_value(page):
    decision = next(d for d in REPORT.decisions if str(d.action) == "save" and d.name.startswith("mul_7"))
    page.run(f"""(() => {{ const s = document.getElementById('search');
        s.value = '{decision.name}'; s.dispatchEvent(new Event('input')); }})()""")
    page.run("document.querySelector('#rows tr.open').click()")
    facts = page.run("document.getElementById('facts').textContent")
    item = next(item for item in REPORT.described if item.name == decision.name)
    others = [f"or {action}{duration(seconds)} by itself" for action, seconds in decision.alternatives]
    told = (decision.name, format_size(decision.bytes), item.operator, item.module, item.source, decision.why, *others)
    assert all(text in facts for text in told), facts
    assert page.run("document.querySelectorAll('#model tr.group').length") == 1
    chosen = page.run("memgraph.page.selected")
    made = lifetimes(REPORT.timeline, REPORT).buffers[chosen]
    assert (made.value, made.bytes) == (decision.name, decision.bytes)


def test_the_model_and_the_refusals(page):
    (group, *_) = [cells for cells, _ in rows(page, "model")]
    kept = page.run("[...document.querySelectorAll('#model td[data-bytes]')].map((cell) => Number(cell.dataset.bytes))")
    decided = {"save": 0, "recompute": 0, "offload:host": 0}
    for decision in REPORT.decisions:
        decided[str(decision.action)] += decision.bytes
    sets = page.run("memgraph.page.part.data.model.length")
    assert [sum(kept[i::3]) for i in range(3)] == list(decided.values()) and len(kept) == 3 * sets
    before = page.run("document.querySelectorAll('#model tbody tr').length")
    page.run("document.querySelector('#model tr.group').click()")
    page.run("document.querySelector('#model tr.part').click()")
    assert page.run("document.querySelectorAll('#model tbody tr').length") > before + 2
    assert group[0].startswith("▸ model.layers.")
    refused = page.run("document.getElementById('refused').textContent")
    assert REPORT.refusals[0].what in refused and REPORT.refusals[0].reason in refused


def test_the_peak_is_drawn_where_it_is(page):
    page.run("memgraph.page.useAxis(false)")
    top = page.run("""(() => {
        const { page } = memgraph; const { chart } = page; const ink = chart.curve.getContext('2d');
        const column = chart.shown.most.indexOf(page.part.planned.peak);
        const pixels = ink.getImageData(78 + column, 0, 1, Math.ceil(chart.box.bottom)).data;
        const blue = (y) => pixels[4 * y + 3] === 255 && pixels[4 * y + 2] > 150 && pixels[4 * y] < 120;
        const below = [...Array(Math.floor(chart.box.bottom)).keys()].filter(blue);
        return [Math.min(...below), chart.y(page.part.planned.total[page.part.planned.peak]), column];
    })()""")
    assert top[2] >= 0  # the column of the peak shows the peak, however many events it has
    assert top[0] == pytest.approx(top[1], abs=8)  # the mark of the peak lies over the uppermost pixels


def test_exports(page):
    lines = page.run("memgraph.csv(memgraph.page.part)").splitlines()
    made = lifetimes(REPORT.timeline, REPORT).buffers
    assert len(lines) == len(made) + 1
    assert [int(line.split(",")[2]) for line in lines[1:]] == [buffer.bytes for buffer in made]
    picture = page.run("memgraph.svg(memgraph.page.chart)")
    assert picture.startswith("<svg") and f"peak {format_size(REPORT.predicted_peak)}" in picture
    assert page.run("new DOMParser().parseFromString(memgraph.svg(memgraph.page.chart), 'image/svg+xml')"
                    ".querySelector('parsererror') === null")  # fmt: skip


def test_numbers_are_written_as_python_writes_them(page):
    sizes = [0, 1, 1023, 1024, 1280, 1792, 1536, 1048524, 1048525, 2**20, 5 * 2**18, 7 * 2**28, 2**40, 3 * 2**51, -2048]
    assert page.run(f"{sizes}.map(memgraph.bytes)") == [format_size(size) for size in sizes]
    times = [0.0, 1.25, 1.35, 0.99, 0.00125, 2.5e-4, 9.99e-7, 12.0]
    assert page.run(f"{times}.map(memgraph.seconds)") == [duration(time) for time in times]


@pytest.mark.parametrize("report", [example(), EMPTY], ids=["untimed", "empty"])
def test_reports_without_times_or_events(browser, report, tmp_path):
    report.html(tmp_path / "report.html")
    browser.errors.clear()
    browser.open(tmp_path / "report.html", 800, 900, dark=True)
    assert browser.run("memgraph.page.axis.timed") is False and browser.run("document.getElementById('axis').disabled")
    assert browser.run("document.documentElement.scrollWidth") <= 800
    browser.press("t")
    browser.press("ArrowRight")
    assert browser.errors == []


def test_a_step_and_its_graphs(browser, tmp_path):
    parts = tuple(dataclasses.replace(REPORT, graph=name) for name in ("layer [0]", "loss [0]"))
    report = step_example(parts=parts)
    report.html(tmp_path / "step.html")
    browser.errors.clear()
    browser.open(tmp_path / "step.html")
    levels = browser.run(
        "[...document.querySelectorAll('#launch-rows [data-level]')].map((r) => Number(r.dataset.level))"
    )
    assert levels == [launch.level for launch in report.measured.launches]
    first = browser.run("[...document.querySelector('#launch-rows tbody tr').cells].map((cell) => cell.textContent)")
    launch = report.measured.launches[0]
    planned, measured = (launch.predicted_forward, launch.predicted_backward), (launch.measured_forward,)
    assert first[3:6] == [format_size(size) for size in (*planned, *measured)]
    browser.run("document.querySelectorAll('#launch-rows tbody tr')[4].click()")
    assert "loss [0]" in browser.run("document.getElementById('title').textContent")
    assert browser.run("document.getElementById('sheet').hidden") is True
    assert browser.errors == []


def figures_of_the_frontier(page):
    script = """Object.fromEntries([...document.querySelectorAll('#frontier-rows tbody tr')].map((row) =>
        [row.dataset.figure, [...row.cells].slice(1).map((cell) => [cell.textContent, Number(cell.dataset.value)])]))"""
    return page.run(script)


def test_the_slider_shows_what_another_budget_changes(browser, tmp_path):
    report = dataclasses.replace(REPORT, reserve=0, budget=500 * 2**20)
    found = curve(report)
    report.html(tmp_path / "report.html", frontier=found)
    browser.errors.clear()
    browser.open(tmp_path / "report.html")
    told = "document.getElementById('frontier-told').textContent"
    assert browser.run(told) == "The budget of this plan."
    assert browser.run("document.querySelectorAll('#frontier-curve .knee').length") == len(found.knees) > 0
    browser.run("document.getElementById('budgets').focus()")
    browser.press("ArrowLeft")
    rows = figures_of_the_frontier(browser)
    for key, value in vars(found.points[0]).items():
        if key != "least_seconds":
            own = getattr(found.points[1], key)
            assert [number for _, number in rows[key]] == pytest.approx([value, own, value - own])
    assert rows["recomputed"][2][0] == "+200.0 MiB" and rows["peak"][2][0] == "-200.0 MiB"
    later = 100 * (found.points[0].seconds / found.points[1].seconds - 1)
    assert browser.run(told) == (
        f"40.0 % less memory: +{later:.1f} % time, 200.0 MiB more recomputed, 64.0 MiB more offloaded."
    )
    browser.press("End")
    assert browser.run("Number(document.getElementById('budgets').value)") == 3
    assert "80.0 % more memory: -" in browser.run(told) and "2 fewer regions in shards" in browser.run(told)
    browser.run("document.querySelector('#frontier-curve [data-point=\"1\"]').dispatchEvent(new MouseEvent('click'))")
    assert browser.run(told) == "The budget of this plan."
    place = browser.run("""(() => { const box = (id) => document.querySelector(id).getBBox();
        const [plan, dot] = [box('#frontier-plan'), box('#frontier-curve [data-point="1"]')];
        return [plan.x + plan.width / 2, dot.x + dot.width / 2] })()""")
    assert place[0] == pytest.approx(place[1], abs=0.5)  # the plan stands over its budget
    browser.look(800, 900, dark=True)
    assert browser.run("document.documentElement.scrollWidth") <= 800
    assert browser.errors == []


def test_without_a_frontier_the_page_says_how_to_get_one(page):
    assert "--frontier" in page.run("document.getElementById('frontier').textContent")
    assert page.run("document.getElementById('budgets') === null")


def test_two_reports_in_one_page(browser, tmp_path):
    first = dataclasses.replace(REPORT, plan=plan(layers(Save())))
    second = dataclasses.replace(synthetic(12, 60), plan=plan([*layers(Save())[:8], *layers(Recompute())[8:]]))
    diff(first, second).html(tmp_path / "diff.html")
    browser.errors.clear()
    browser.open(tmp_path / "diff.html")
    assert browser.run("document.getElementById('graph').hidden") is True
    (row,) = rows(browser, "changes")
    assert row[0][:5] == ["▸ model.layers.8..31.mlp.up_proj", "save", "recompute", "24", format_size(48 * 2**20)]
    browser.run("document.querySelector('#changes tr.group').click()")
    assert len(rows(browser, "changes")) == 25
    browser.press("/")
    browser.run("""(() => { const s = document.activeElement; s.value = 'up_9';
        s.dispatchEvent(new Event('input')); })()""")
    assert [cells[0] for cells, _ in rows(browser, "changes")] == [
        "▾ model.layers.8..31.mlp.up_proj",
        "up_9  model.layers.9.mlp.up_proj",
    ]
    box = browser.run("""(() => { const r = document.getElementById('pair').getBoundingClientRect();
        return [r.x, r.y, r.width] })()""")
    browser.mouse("mouseMoved", box[0] + box[2] / 2, box[1] + 100)
    told = browser.run("document.getElementById('pair-told').textContent")
    assert "first " in told and "second " in told and "difference " in told
    for number, report in ((1, first), (2, second)):
        browser.run(f"document.querySelectorAll('#tabs button')[{number}].click()")
        assert browser.run("Number(document.getElementById('moment').dataset.bytes)") == report.predicted_peak
    assert browser.run("document.getElementById('sheet').hidden") is True
    browser.run("document.querySelectorAll('#tabs button')[0].click()")
    browser.look(800, 900, dark=True)
    assert browser.run("document.documentElement.scrollWidth") <= 800
    assert browser.errors == []


def test_ranks_beside_each_other(browser, tmp_path):
    ranks = [dataclasses.replace(REPORT, rank=n, predicted_peak=REPORT.predicted_peak + n) for n in range(2)]
    step = step_example(rank=2, parts=(dataclasses.replace(REPORT, graph="loss [0]"),), budget=2**30)
    found = RankReports.of([*ranks, step])
    found.html(tmp_path / "ranks.html")
    browser.errors.clear()
    browser.open(tmp_path / "ranks.html")
    told = browser.run("""[...document.querySelectorAll('#ranks tbody tr')].map((row) =>
        [...row.cells].map((cell) => cell.textContent))""")
    assert [row[0] for row in told] == ["rank 0", "rank 1", "rank 2"]
    assert [row[3] for row in told] == [format_size(r.predicted_peak) for r in (*ranks, step)]
    assert [row[-1] for row in told] == ["the tightest" * (rank is found.tightest) for rank in found.ranks]
    assert browser.run("document.querySelectorAll('#rank-bars [data-rank]').length") == 3
    tabs = "[...document.querySelectorAll('#tabs button')].filter((tab) => !tab.hidden).map((tab) => tab.textContent)"
    assert browser.run(tabs) == ["all ranks", "rank 0", "rank 1", "rank 2"]
    browser.run("document.querySelectorAll('#ranks tbody tr')[2].click()")
    browser.run("document.querySelectorAll('#launch-rows tbody tr')[4].click()")
    assert "loss [0]" in browser.run("document.getElementById('title').textContent")
    chosen = browser.run("document.querySelector('#tabs [aria-selected=true]').textContent")
    assert chosen == "rank 2"  # the graph is one of that rank's
    browser.run("document.querySelectorAll('#tabs button')[0].click()")
    browser.look(800, 900, dark=True)
    assert browser.run("document.documentElement.scrollWidth") <= 800
    assert browser.errors == []


def test_what_runs_outside_is_drawn_at_its_place(browser, tmp_path):
    top = REPORT.unplanned_peak + 64 * 2**20
    around = (OutsideFigures("backward of step [0]", "forward of step [0]", REPORT.level, top),)
    rounds = tuple(dataclasses.replace(some, outside=around) for some in step_example().rounds)
    step_example(rounds=rounds, parts=(REPORT,)).html(tmp_path / "step.html")
    browser.errors.clear()
    browser.open(tmp_path / "step.html")
    browser.run("document.querySelectorAll('#tabs button')[1].click()")
    assert "outside" in browser.run("document.getElementById('legend').textContent")
    bars = browser.run("memgraph.outsideBars(memgraph.page.chart)")
    box = browser.run("(() => { const b = memgraph.page.chart.box; return [b.left, b.right] })()")
    assert [bar["item"]["place"] for bar in bars] == ["begin", "end"]
    assert bars[0]["x"] == pytest.approx(box[0], abs=2) and bars[1]["x"] + 9 == pytest.approx(box[1], abs=2)
    assert browser.run("memgraph.page.part.top") == top  # it is the highest of all
    stage = browser.run("""(() => { const r = document.getElementById('over').getBoundingClientRect();
        return [r.x, r.y] })()""")
    browser.mouse("mouseMoved", stage[0] + bars[0]["x"] + 4, stage[1] + bars[0]["top"] + 10)
    told = browser.run("document.getElementById('tip').textContent")
    assert told == (
        "outside, from the backward of step [0] to the forward of step [0]: "
        f"{format_size(top - REPORT.level)}, up to {format_size(top)}"
    )
    assert told in browser.run("memgraph.svg(memgraph.page.chart)")
    browser.run("memgraph.page.zoom(0.2, memgraph.page.axis.end / 2)")
    assert browser.run("memgraph.outsideBars(memgraph.page.chart)") == []
    assert browser.errors == []


def test_a_graph_by_itself_says_where_the_outside_is_measured(page):
    assert "memgraph.step_report().html(path)" in page.run("document.getElementById('notes').textContent")
