// The page: which graph is shown, which stretch of its step, which moment and which buffer are chosen.

const KEYS = [
  ["left, right", "the chosen moment, by one event; with shift by fifty"], ["+ and -", "zoom; also the wheel"],
  ["0", "the whole step"], ["p", "the peak"], ["t", "axis: order of events, or predicted time"],
  ["up, down", "the buffer above or below in the list"], ["/", "search"], ["d", "dark or light"],
  ["Escape", "choose nothing"], ["left, right on the slider", "another budget"],
];

// The views that are no graph: each is shown in the sheet, and returns what draws its pictures again.
const SHEETS = { step: showStep, diff: showDiff, ranks: showRanks };

class Page {
  constructor(data) {
    this.data = data;
    this.parts = data.parts.map((part) => new Part(part));
    this.selected = null;
    this.chart = new Chart(this);
    this.live = new Live(this);
    this.model = new Model(this);
    this.frontier = new Frontier(this);
    this.colours = new Map();
    this.listen();
    this.tabs();
  }

  colour(name) {
    if (!this.colours.has(name)) {
      this.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return this.colours.get(name);
  }

  tabs() {
    const { views } = this.data;
    $("tabs").replaceChildren(...(views.length < 2 ? [] : views.map((view, i) => make("button", {
      role: "tab", "data-view": i, hidden: Number.isInteger(view.under), onclick: () => this.open(i),
    }, view.name))));
    this.open(0);
  }

  // Show one of the views.
  open(number) {
    const view = this.data.views[number];
    for (const tab of $("tabs").children) {
      tab.setAttribute("aria-selected", String(Number(tab.dataset.view) === (view.under ?? number)));
    }
    $("title").textContent = `memgraph: ${view.title}`;
    $("summary").textContent = unbroken(view.summary);
    $("graph").hidden = view.kind !== "graph";
    $("sheet").hidden = view.kind === "graph";
    this.drawSheet = null;
    if (view.kind === "graph") this.show(view.part);
    else {
      this.drawSheet = SHEETS[view.kind](this, view);
      this.drawSheet();
    }
  }

  show(number) {
    this.part = this.parts[number];
    const { data } = this.part;
    $("answers").replaceChildren(...data.answers.map(([name, text], i) => {
      const over = text.includes("OVER") || text.startsWith("no");
      return make("div", { class: `answer ${i ? "" : over ? "over" : "fits"}` }, make("b", {}, name), unbroken(text));
    }));
    this.selected = null;
    this.state = this.part.planned.peak;
    this.useAxis(this.part.timed);
    $("axis").disabled = !this.part.timed;
    this.legend();
    this.frontier.show(this.part);
    showNotes(this.part);
    this.model.open.clear();
    this.model.show();
    $("facts").replaceChildren(make("p", { class: "soft" }, "Choose a row of the list, or of the model."));
  }

  useAxis(timed) {
    this.axis = new Axis(this.part, timed);
    this.view = { low: 0, high: this.axis.end };
    $("axis").textContent = `axis: ${timed ? "predicted time" : "order"}`;
    this.redraw();
    this.live.show();
  }

  legend() {
    const entry = (name, colour, kind) => make("span", {},
      make("i", { class: kind, style: kind ? `border-color:${colour}` : `background:${colour}` }), name);
    const { data } = this.part;
    $("legend").replaceChildren(
      ...this.chart.layers().map((layer) => entry(layer.name, layer.colour, "")),
      data.outside?.length ? entry("outside", OUTSIDE, "") : "",
      entry("unplanned", "var(--soft)", "line"),
      data.budget === null ? "" : entry("budget", "var(--budget)", "line dashed"),
      data.measured_peak === null ? "" : entry("measured peak", "var(--good)", "line dashed"),
    );
  }

  // The place at which a state is marked.
  middle(state) {
    const starts = this.axis.starts.get(this.part.planned);
    return starts[state];
  }

  redraw() {
    this.colours.clear();
    if (this.drawSheet) this.drawSheet();
    if ($("graph").hidden) return;
    this.chart.fit();
    this.chart.draw();
    this.chart.drawOver();
    this.frontier.draw();
  }

  // Draw once in a frame, whatever happened in it.
  soon(curve) {
    this.stale = this.stale || curve;
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.stale) this.chart.draw();
      this.stale = false;
      this.chart.drawOver(this.pointed);
    });
  }

  zoom(factor, place) {
    const { low, high } = this.view;
    const least = this.axis.end / Math.max(2000, this.part.planned.events);
    const width = Math.min(this.axis.end, Math.max(least, (high - low) * factor));
    const share = (place - low) / (high - low);
    this.pan(place - share * width, width);
  }

  pan(low, width) {
    const start = Math.min(Math.max(0, low), this.axis.end - width);
    this.view = { low: start, high: start + width };
    this.soon(true);
  }

  moment(state) {
    this.state = Math.min(Math.max(0, state), this.part.planned.events);
    const place = this.middle(this.state);
    const { low, high } = this.view;
    if (place < low || place > high) this.pan(place - (high - low) / 2, high - low);
    this.live.show();
    this.soon(false);
  }

  select(i) {
    this.selected = i;
    for (const row of $("rows").querySelectorAll("tr.open")) {
      row.setAttribute("aria-selected", String(Number(row.dataset.buffer) === i));
    }
    if (i !== null) this.live.facts(i);
    this.soon(false);
  }

  // A decision of the model: its buffer, where it has one.
  choose(decision) {
    const track = this.part.planned;
    const i = track.value.indexOf(this.part.data.decisions.name[decision]);
    this.select(i >= 0 ? i : null);
    this.live.facts(i >= 0 ? i : null, decision);
  }

  step(by) {
    const rows = [...$("rows").querySelectorAll("tr.open")];
    const at = rows.findIndex((row) => Number(row.dataset.buffer) === this.selected);
    const row = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
    if (!row) return;
    this.select(Number(row.dataset.buffer));
    row.scrollIntoView({ block: "nearest" });
  }

  theme() {
    const root = document.documentElement;
    const dark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = dark ? "light" : "dark";
    this.redraw();
  }

  help() {
    $("keys").replaceChildren(make("dl", {}, ...KEYS.flatMap(([key, text]) => [make("dt", {}, key), make("dd", {}, text)])));
    $("keys").showModal();
  }

  tip(event) {
    const { chart, part } = this;
    const tip = $("tip");
    const x = event.offsetX;
    if (x < LEFT || x > chart.box.right) {
      tip.hidden = true;
      this.pointed = undefined;
      return;
    }
    this.pointed = chart.place(x);
    const state = this.stateAt(x);
    const work = workAt(chart, x, event.offsetY) ?? outsideAt(chart, x, event.offsetY);
    tip.textContent = work ?? [
      this.axis.label(this.pointed), `planned ${bytes(part.planned.total[state])}`,
      `unplanned ${bytes(part.unplanned.total[this.axis.state(part.unplanned, this.pointed)])}`,
    ].join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.min(x + 14, chart.size.width - 180)}px`;
    tip.style.top = `${Math.max(0, event.offsetY - 20)}px`;
  }

  // Of the states in a column of pixels, the highest: what the column shows.
  stateAt(x) {
    const shown = this.chart.shown.most;
    return shown[Math.min(shown.length - 1, Math.max(0, Math.floor(x - LEFT)))];
  }

  listen() {
    const over = $("over");
    let drag = null;
    over.addEventListener("pointermove", (event) => {
      if (drag) {
        const width = this.view.high - this.view.low;
        drag.moved = drag.moved || Math.abs(event.offsetX - drag.x) > 3;
        if (drag.moved) this.pan(drag.low - ((event.offsetX - drag.x) / this.chart.box.width) * width, width);
      }
      this.tip(event);
      this.soon(false);
    });
    over.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, low: this.view.low, moved: false };
      over.setPointerCapture(event.pointerId);
    });
    over.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved && event.offsetX >= LEFT) this.moment(this.stateAt(event.offsetX));
      drag = null;
    });
    over.addEventListener("pointerleave", () => {
      $("tip").hidden = true;
      this.pointed = undefined;
      this.soon(false);
    });
    over.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const width = this.view.high - this.view.low;
        this.pan(this.view.low + ((event.deltaX || event.deltaY) / this.chart.box.width) * width, width);
      } else this.zoom(Math.exp(event.deltaY / 400), this.chart.place(event.offsetX));
    }, { passive: false });
    const acts = {
      axis: () => this.useAxis(!this.axis.timed), theme: () => this.theme(), help: () => this.help(),
      in: () => this.zoom(0.5, this.centre()), out: () => this.zoom(2, this.centre()),
      all: () => this.pan(0, this.axis.end), peak: () => this.moment(this.part.planned.peak),
      svg: () => save("memgraph.svg", "image/svg+xml", svg(this.chart)),
      csv: () => save("memgraph.csv", "text/csv", csv(this.part)),
    };
    for (const [id, act] of Object.entries(acts)) $(id).addEventListener("click", act);
    document.addEventListener("keydown", (event) => this.key(event, acts));
    window.addEventListener("resize", () => this.redraw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  centre() {
    const place = this.middle(this.state);
    const { low, high } = this.view;
    return place >= low && place <= high ? place : (low + high) / 2;
  }

  key(event, acts) {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "d") this.theme();
    if (event.key === "?") this.help();
    if (event.key === "/" && $("graph").hidden && $("wanted")) {
      event.preventDefault();
      $("wanted").focus();
    }
    if ($("graph").hidden || $("keys").open) return;
    const by = event.shiftKey ? 50 : 1;
    const done = {
      ArrowLeft: () => this.moment(this.state - by), ArrowRight: () => this.moment(this.state + by),
      ArrowUp: () => this.step(-1), ArrowDown: () => this.step(1), Escape: () => this.select(null),
      "/": () => $("search").focus(), "+": acts.in, "=": acts.in, "-": acts.out, 0: acts.all, p: acts.peak,
      t: () => this.part.timed && acts.axis(),
    }[event.key];
    if (!done) return;
    event.preventDefault();
    done();
  }
}

window.memgraph = { ready: false, Axis, bytes, seconds, csv, svg, outsideBars };
inflated($("data").textContent).then((data) => {
  window.memgraph.page = new Page(data);
  window.memgraph.ready = true;
  requestAnimationFrame(() => { window.memgraph.painted = performance.now(); });
}).catch((problem) => {
  $("summary").textContent = `This page could not be read: ${problem}`;
  window.memgraph.problem = String(problem);
});
