// Several ranks beside each other: what each peaks at, and which one is the tightest.

function showRanks(page, { ranks }) {
  const size = (value) => make("td", { class: "number", "data-bytes": value }, value === null ? "-" : bytes(value));
  const head = ["rank", "device", "level", "predicted peak", "measured peak", "budget", "to spare", ""];
  const rows = ranks.map((rank) => make("tr", {
    class: "open", "aria-selected": String(rank.tightest), onclick: () => page.open(rank.view),
  }, make("td", {}, rank.name), make("td", {}, rank.device), size(rank.level), size(rank.predicted), size(rank.measured),
  size(rank.budget), size(rank.spare), make("td", {}, rank.tightest ? "the tightest" : "")));
  const picture = shape("svg", { id: "rank-bars", role: "img", "aria-label": "peaks by rank" });
  $("sheet").replaceChildren(
    make("section", { class: "panel" }, make("h2", {}, "Peaks of all ranks"),
      make("p", { class: "soft" }, "Grey is what stands when a step begins, blue what the step takes as predicted; a line "
        + "across is what was measured, a dashed one the budget. A click opens the rank."),
      make("div", { class: "scroll" }, picture)),
    make("section", { class: "panel" }, make("div", { class: "scroll" }, make("table", { id: "ranks" },
      make("thead", {}, make("tr", {}, ...head.map((name, i) => make("th",
        { class: i > 1 && i < 7 ? "number" : "" }, name)))), make("tbody", {}, ...rows)))));
  return () => drawRanks(page, picture, ranks);
}

function drawRanks(page, picture, ranks) {
  const height = 320;
  const least = 46; // pixels of a rank: of very many, the picture scrolls
  const width = Math.max(picture.parentElement.clientWidth, LEFT + RIGHT + least * ranks.length);
  const sizes = ranks.flatMap((rank) => [rank.level, rank.predicted, rank.measured, rank.budget]);
  const top = 1.08 * Math.max(...sizes.filter((size) => size !== null), 1);
  const y = (size) => height - 40 - (size / top) * (height - 56);
  const room = (width - LEFT - RIGHT) / ranks.length;
  const bar = Math.min(70, room * 0.6);
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(top) / Math.log(1024)));
  const found = ticks(0, top / unit, 6).flatMap((size) => [
    shape("line", { x1: LEFT, x2: width - RIGHT, y1: y(size * unit), y2: y(size * unit), stroke: "var(--line)" }),
    shape("text", { x: LEFT - 8, y: y(size * unit) + 4, "text-anchor": "end" }, bytes(size * unit))]);
  ranks.forEach((rank, n) => {
    const middle = LEFT + (n + 0.5) * room;
    const block = (from, to, fill) => shape("rect",
      { x: middle - bar / 2, width: bar, y: y(to), height: Math.max(0, y(from) - y(to)), fill });
    const across = (size, stroke, more) => shape("line", { x1: middle - room * 0.45, x2: middle + room * 0.45,
      y1: y(size), y2: y(size), stroke, "stroke-width": 2, ...more });
    const group = shape("g", { class: "point", "data-rank": rank.name });
    group.append(block(0, rank.level, GREYS[1]));
    if (rank.predicted !== null) group.append(block(rank.level, rank.predicted, DOING.forward));
    if (rank.measured !== null) group.append(across(rank.measured, "var(--ink)"));
    if (rank.budget !== null) group.append(across(rank.budget, "var(--budget)", { "stroke-dasharray": "6 4" }));
    group.append(shape("text", { x: middle, y: height - 22, "text-anchor": "middle" }, rank.name));
    if (rank.tightest) {
      group.append(shape("text", { x: middle, y: height - 7, "text-anchor": "middle", class: "bound" }, "tightest"));
    }
    group.addEventListener("click", () => page.open(rank.view));
    found.push(group);
  });
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) {
    picture.setAttribute(name, value);
  }
  picture.replaceChildren(...found);
}
