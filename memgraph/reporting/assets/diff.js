// Two plans: their curves over each other, their figures side by side, and the decisions that differ.

const FIRST = "#0072b2";
const SECOND = "#d55e00";

function showDiff(page, { diff }) {
  const curves = diff.curves.length ? new Curves(page, diff.curves) : null;
  const sums = make("table", { id: "sums" },
    make("thead", {}, make("tr", {}, ...["", "first", "second", "difference"].map((name, i) => make("th",
      { class: i ? "number" : "" }, name)))),
    make("tbody", {}, ...diff.sums.map((row) => make("tr", {}, ...row.map((text, i) => make("td",
      { class: i ? "number" : "" }, text))))));
  const why = `The ${diff.missing.join(" and the ")} is a plan file, which knows no timeline: two reports have curves.`;
  const missing = diff.missing.length ? why : "The two reports have no graph of one name.";
  $("sheet").replaceChildren(
    make("section", { class: "panel" }, make("h2", {}, "Both as planned"),
      ...(curves ? curves.elements() : [make("p", { class: "soft" }, missing)])),
    make("section", { class: "panel" }, make("h2", {}, "What they take"), sums),
    make("section", { class: "panel" }, make("h2", {}, "Decisions that differ"), ...new Changes(diff.changes).elements()),
    make("section", { class: "panel" }, ...(diff.notes.length ? [make("h2", {}, "Notes"),
      ...diff.notes.map((note) => make("p", { class: "soft" }, note))] : [])));
  return () => curves && curves.draw();
}

// The decisions that differ, by module and equal layers together; a click shows the values of a row.
class Changes {
  constructor(changes) {
    this.changes = changes;
    this.open = new Set();
    this.table = make("table", { id: "changes" });
    this.search = make("input", {
      id: "wanted", type: "search", placeholder: "search modules, values, actions ( / )", "aria-label": "search",
      oninput: () => this.show(),
    });
    this.show();
  }

  elements() {
    if (!this.changes.length) return [make("p", { class: "soft" }, "None: both plans decide the same.")];
    return [make("div", { class: "tools" }, this.search), make("div", { class: "scroll" }, this.table)];
  }

  show() {
    const wanted = this.search.value.trim().toLowerCase();
    const finds = (...texts) => texts.some((text) => text.toLowerCase().includes(wanted));
    const head = ["module or value", "first", "second", "values", "bytes", "first computes again", "second computes again"];
    const body = make("tbody");
    this.changes.forEach((change, number) => {
      const all = finds(change.module, change.was, change.becomes);
      const members = change.members.filter(([name, module]) => all || finds(name, module));
      if (!members.length) return;
      const open = this.open.has(number) || (wanted !== "" && !all);
      const sum = (place) => change.members.reduce((total, member) => total + member[place], 0);
      body.append(this.row(change, `${open ? "▾" : "▸"} ${change.module || "(no module)"}`, change.members.length,
        [change.bytes, sum(3), sum(4)], "open group", () => this.toggle(number)));
      if (!open) return;
      for (const [name, module, ...figures] of members.slice(0, ROWS)) {
        body.append(this.row(change, module === change.module ? name : `${name}  ${module}`, "", figures, "part"));
      }
      if (members.length > ROWS) {
        body.append(make("tr", { class: "part" }, make("td", { colspan: 7 }, `${members.length - ROWS} more`)));
      }
    });
    this.table.replaceChildren(make("thead", {}, make("tr", {}, ...head.map((name, i) => make("th",
      { class: i > 2 ? "number" : "" }, name)))), body);
  }

  row(change, name, count, [size, one, two], kind, act = () => {}) {
    const time = (value) => make("td", { class: "number" }, value ? seconds(value) : "-");
    return make("tr", { class: kind, onclick: act }, make("td", {}, name), make("td", {}, change.was),
      make("td", {}, change.becomes), make("td", { class: "number" }, String(count)),
      make("td", { class: "number", "data-bytes": size }, bytes(size)), time(one), time(two));
  }

  toggle(number) {
    if (!this.open.delete(number)) this.open.add(number);
    this.show();
  }
}

// The planned curves of two reports on one axis.
class Curves {
  constructor(page, pairs) {
    this.page = page;
    this.pairs = pairs;
    this.canvas = make("canvas", {
      id: "pair", "aria-label": "allocated bytes over the step, both plans",
      onpointermove: (event) => this.tip(event), onpointerleave: () => this.draw(),
    });
    this.told = make("p", { class: "soft", id: "pair-told" });
    this.select = make("select", { "aria-label": "graph", onchange: () => this.choose(Number(this.select.value)) },
      ...pairs.map(([name], i) => make("option", { value: i }, name)));
    this.button = make("button", { onclick: () => this.useAxis(!this.axis.timed) });
    this.choose(0);
  }

  elements() {
    const entry = (name, colour, kind = "line") => make("span", {},
      make("i", { class: kind, style: `border-color:${colour}` }), name);
    return [
      make("div", { class: "tools" }, this.pairs.length > 1 ? this.select : null, this.button),
      make("div", { class: "legend" }, entry("first", FIRST), entry("second", SECOND),
        entry("budgets", "var(--budget)", "line dashed")),
      this.canvas, this.told,
    ];
  }

  choose(number) {
    const [, first, second] = this.pairs[number];
    [this.first, this.second] = [this.page.parts[first], this.page.parts[second]];
    this.button.disabled = !(this.first.timed && this.second.timed);
    this.useAxis(!this.button.disabled);
  }

  useAxis(timed) {
    const { first, second } = this;
    this.axis = new Axis({ planned: first.planned, unplanned: second.planned, end: 0 }, timed);
    this.button.textContent = `axis: ${timed ? "predicted time" : "order"}`;
    this.draw();
  }

  // The tracks, and how each is shown.
  sides() {
    return [[this.first, FIRST], [this.second, SECOND]];
  }

  draw(pointed) {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = box.width * scale;
    this.canvas.height = box.height * scale;
    const ink = this.canvas.getContext("2d");
    ink.scale(scale, scale);
    ink.font = "11px system-ui, sans-serif";
    const top = 1.06 * Math.max(...this.sides().flatMap(([part]) => [part.data.budget || 0,
      part.planned.total[part.planned.peak]]));
    const room = { width: box.width - LEFT - RIGHT, bottom: box.height - AXIS };
    this.y = (size) => room.bottom - (size / top) * (room.bottom - TOP);
    this.width = Math.max(1, Math.floor(room.width));
    this.grid(ink, top, room);
    for (const [part, colour] of this.sides()) this.curve(ink, part, colour, room);
    if (pointed !== undefined) {
      ink.strokeStyle = this.page.colour("--soft");
      ink.strokeRect(Math.round(pointed) + 0.5, TOP, 0, room.bottom - TOP);
    } else this.tell("");
  }

  grid(ink, top, room) {
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(top) / Math.log(1024)));
    ink.fillStyle = this.page.colour("--soft");
    ink.strokeStyle = this.page.colour("--line");
    ink.textAlign = "right";
    for (const size of ticks(0, top / unit, 6)) {
      const y = Math.round(this.y(size * unit)) + 0.5;
      ink.strokeRect(LEFT, y, room.width, 0);
      ink.fillText(bytes(size * unit), LEFT - 8, y + 4);
    }
    ink.fillText(this.axis.label(this.axis.end), LEFT + room.width, room.bottom + 15);
    ink.textAlign = "left";
    ink.fillText("0", LEFT, room.bottom + 15);
  }

  // A curve and its peak, over its budget.
  curve(ink, part, colour, room) {
    const track = part.planned;
    const { most } = this.shown(part);
    if (part.data.budget !== null) {
      const y = Math.round(this.y(part.data.budget)) + 0.5;
      ink.strokeStyle = this.page.colour("--budget");
      ink.setLineDash(part === this.first ? [7, 4] : [2, 3]);
      ink.beginPath();
      ink.moveTo(LEFT, y);
      ink.lineTo(LEFT + room.width, y);
      ink.stroke();
      ink.setLineDash([]);
    }
    ink.strokeStyle = ink.fillStyle = colour;
    ink.lineWidth = 1.8;
    ink.beginPath();
    for (let x = 0; x < this.width; x++) ink.lineTo(LEFT + x, this.y(track.total[most[x]]));
    ink.stroke();
    const x = LEFT + Math.max(0, most.indexOf(track.peak));
    const y = this.y(track.total[track.peak]);
    ink.beginPath();
    ink.arc(x, y, 4, 0, 7);
    ink.fill();
    const right = x > LEFT + room.width - 130;
    ink.textAlign = right ? "right" : "left";
    ink.fillStyle = this.page.colour("--ink");
    label(ink, this.page, `peak ${bytes(track.total[track.peak])}`, x + (right ? -8 : 8), y - 5);
    ink.lineWidth = 1;
  }

  shown(part) {
    return this.axis.columns(part.planned, { low: 0, high: this.axis.end }, this.width);
  }

  tip(event) {
    const x = Math.min(this.width - 1, Math.max(0, Math.floor(event.offsetX - LEFT)));
    const place = ((x + 0.5) / this.width) * this.axis.end;
    const sizes = this.sides().map(([part]) => part.planned.total[this.shown(part).most[x]]);
    this.draw(LEFT + x);
    this.tell(`${this.axis.label(place)}: first ${bytes(sizes[0])}, second ${bytes(sizes[1])}, `
      + `difference ${signed(sizes[1] - sizes[0], bytes)}`);
  }

  tell(text) {
    this.told.textContent = text || "Point at the curves to compare them.";
  }
}
