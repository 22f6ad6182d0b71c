// Time against memory: the plans of many budgets as a curve, and what a little more or less memory would change.

const FRONTIER = { left: 64, right: 18, top: 22, bottom: 36, height: 300 };
const MISSING = "What more or less memory would change: report.html(path, frontier=memgraph.frontier(...)), "
  + "or memgraph plan ... --html FILE --frontier.";

class Frontier {
  constructor(page) {
    this.page = page;
    this.root = $("frontier");
  }

  show(part) {
    this.data = part.data.frontier;
    if (!this.data) {
      this.root.replaceChildren(make("h2", {}, "Time against memory"), make("p", { class: "soft" }, MISSING));
      return;
    }
    this.slider = make("input", {
      type: "range", id: "budgets", min: 0, max: this.data.points.length - 1, step: 1, value: this.data.here,
      "aria-label": "budget", oninput: () => this.choose(Number(this.slider.value)),
    });
    this.picture = shape("svg", { id: "frontier-curve", role: "img", "aria-label": "slow-down by budget" });
    this.told = make("p", { id: "frontier-told" });
    this.table = make("table", { id: "frontier-rows" });
    this.root.replaceChildren(make("h2", {}, "Time against memory"), make("div", { class: "columns even" },
      make("div", {}, this.picture, make("p", { class: "soft" }, `${this.data.about}, by the graph sweep. Dots: plans, `
        + "ringed where memory gets dear below; dashed: no plan of this kind is faster.")),
      make("div", {}, make("label", {}, "budget", this.slider), this.told, this.table)));
    this.choose(this.data.here);
  }

  choose(number) {
    this.chosen = number;
    this.slider.value = number;
    this.slider.setAttribute("aria-valuetext", bytes(this.data.points[number].budget));
    const { points, here } = this.data;
    const [point, own] = [points[number], points[here]];
    this.told.textContent = difference(point, own);
    const rows = [
      ["budget", "budget", bytes], ["peak", "peak", bytes], ["time of a step", "seconds", seconds],
      ["slow-down", "slowdown", percent], ["at best", "least_slowdown", percent], ["recomputed", "recomputed", bytes],
      ["offloaded", "offloaded", bytes], ["regions in shards", "tiled", String],
    ];
    const cell = (value, told) => make("td", { class: "number", "data-value": value },
      value === null ? "-" : told(value));
    const head = ["", "chosen", "at this plan's budget", "difference"]
      .map((name, i) => make("th", { class: i ? "number" : "" }, name));
    this.table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {},
      ...rows.map(([name, key, told]) => {
        const more = point[key] === null || own[key] === null ? null : point[key] - own[key];
        return make("tr", { "data-figure": key }, make("td", {}, name), cell(point[key], told), cell(own[key], told),
          cell(more, (value) => signed(value, told)));
      })));
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const width = Math.max(240, Math.round(this.picture.parentElement.getBoundingClientRect().width));
    const { left, right, top, bottom, height } = FRONTIER;
    const { points, plan, least_peak: least } = this.data;
    const budgets = [least, ...points.map((point) => point.budget)];
    const times = [0, plan.slowdown, ...points.flatMap((point) => [point.slowdown, point.least_slowdown ?? 0])];
    const [low, high] = padded(Math.min(...budgets), Math.max(...budgets));
    const [fast, slow] = padded(Math.min(...times), Math.max(...times));
    this.x = (budget) => left + ((budget - low) / (high - low)) * (width - left - right);
    this.y = (time) => height - bottom - ((time - fast) / (slow - fast)) * (height - top - bottom);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("width", width);
    this.picture.setAttribute("height", height);
    this.picture.replaceChildren(...this.grid(width, low, high, fast, slow), ...this.curves(), ...this.dots());
  }

  grid(width, low, high, fast, slow) {
    const { left, right, top, bottom, height } = FRONTIER;
    const across = { x1: left, x2: width - right, stroke: "var(--line)" };
    const found = [];
    for (const time of ticks(fast, slow, 5)) {
      found.push(shape("line", { ...across, y1: this.y(time), y2: this.y(time) }),
        shape("text", { x: left - 8, y: this.y(time) + 4, "text-anchor": "end" }, percent(time)));
    }
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(high) / Math.log(1024)));
    for (const budget of ticks(low / unit, high / unit, Math.max(2, Math.floor(width / 110)))) {
      found.push(shape("text", { x: this.x(budget * unit), y: height - bottom + 18, "text-anchor": "middle" },
        bytes(budget * unit)));
    }
    const { least_peak: least } = this.data;
    return [...found,
      shape("text", { x: left, y: 12, "text-anchor": "start" }, "slow-down of a step, by budget"),
      shape("line", { x1: this.x(least), x2: this.x(least), y1: top, y2: height - bottom, stroke: "var(--budget)",
        "stroke-dasharray": "2 3" }),
      shape("text", { x: this.x(least) + 4, y: height - bottom - 6, class: "bound" }, "no plan is smaller")];
  }

  curves() {
    const path = (key) => this.data.points.filter((point) => point[key] !== null)
      .map((point) => `${this.x(point.budget).toFixed(1)},${this.y(point[key]).toFixed(1)}`).join(" ");
    return [
      shape("polyline", { points: path("least_slowdown"), fill: "none", stroke: "var(--soft)", "stroke-width": 1.5,
        "stroke-dasharray": "5 4" }),
      shape("polyline", { points: path("slowdown"), fill: "none", stroke: "#0072b2", "stroke-width": 2 }),
    ];
  }

  dots() {
    const { points, knees, plan } = this.data;
    const found = points.map((point, i) => {
      const dot = shape("circle", {
        cx: this.x(point.budget), cy: this.y(point.slowdown), r: i === this.chosen ? 6 : 4, class: "point",
        fill: i === this.chosen ? "var(--ink)" : "#0072b2", "data-point": i,
      });
      dot.append(shape("title", {}, `${bytes(point.budget)}: ${percent(point.slowdown)}`));
      dot.addEventListener("click", () => this.choose(i));
      return dot;
    });
    const rings = knees.map((i) => shape("circle", { cx: this.x(points[i].budget), cy: this.y(points[i].slowdown),
      r: 9, fill: "none", stroke: "#d55e00", "stroke-width": 2, class: "knee" }));
    const [x, y] = [this.x(plan.budget), this.y(plan.slowdown)];
    return [...rings, ...found,
      shape("path", { id: "frontier-plan", d: `M${x} ${y - 8}l8 8l-8 8l-8 -8z`, fill: "none", stroke: "var(--good)",
        "stroke-width": 2.5 }),
      shape("text", { x: Math.max(x, FRONTIER.left + 30), y: y - 13, "text-anchor": "middle", class: "plan" }, "this plan")];
  }
}

// What another point of the curve changes, to read.
function difference(point, own) {
  if (point.budget === own.budget) return "The budget of this plan.";
  const share = Math.abs(point.budget - own.budget) / own.budget;
  const told = [`${percent(point.seconds / own.seconds - 1, true)} time`];
  for (const [key, text] of [["recomputed", "recomputed"], ["offloaded", "offloaded"]]) {
    const more = point[key] - own[key];
    if (more) told.push(`${bytes(Math.abs(more))} ${more > 0 ? "more" : "less"} ${text}`);
  }
  const regions = point.tiled - own.tiled;
  if (regions) told.push(`${Math.abs(regions)} ${regions > 0 ? "more" : "fewer"} regions in shards`);
  return `${percent(share)} ${point.budget < own.budget ? "less" : "more"} memory: ${told.join(", ")}.`;
}

// A range with some room at both ends.
function padded(low, high) {
  const room = 0.06 * (high - low) || Math.abs(high) || 1;
  return [low - room, high + room];
}
