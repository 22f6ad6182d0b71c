// A step of training: its launches beside each other, each with the level that it found, what it was planned to reach
// and what was measured.

function showStep(page, { step }) {
  const root = $("sheet");
  const cells = (row) => row.map((text, i) => make("td", { class: i ? "number" : "" }, text));
  const size = (value) => (value === null ? "-" : bytes(value));
  const head = ["launch", "level", "held", "planned forward", "planned backward", "measured forward", "measured backward"];
  const table = make("table", { id: "launch-rows" },
    make("thead", {}, make("tr", {}, ...head.map((name, i) => make("th", { class: i ? "number" : "" }, name)))),
    make("tbody", {}, ...step.launches.map((launch) => make("tr", {
      class: launch.graph in step.views ? "open" : "", "data-level": launch.level,
      onclick: () => launch.graph in step.views && page.open(step.views[launch.graph]),
    }, ...cells([
      launch.graph + (launch.sizes.length ? ` (${launch.sizes.join(", ")})` : ""),
      ...[launch.level, launch.held, ...launch.planned, ...launch.measured].map(size),
    ])))));
  const outside = make("table", {}, make("thead", {}, make("tr", {}, ...["after", "before", "level", "peak"]
    .map((name, i) => make("th", { class: i > 1 ? "number" : "" }, name)))),
  make("tbody", {}, ...step.outside.map(([after, before, level, peak]) => make("tr", {},
    make("td", {}, after), make("td", {}, before), make("td", { class: "number" }, bytes(level)),
    make("td", { class: "number" }, bytes(peak))))));
  const known = [
    ...step.optimizers.map(([name, peak, toCome, note]) => [`${name}.step()`,
      `${bytes(peak)} by its forecast; ${bytes(toCome)} of state to come. ${note}`]),
    ...step.grown.map(([what, grown]) => [`grown: ${what}`, grown]),
  ];
  root.replaceChildren(
    make("section", { class: "panel" }, make("h2", {}, `Launches of round ${step.round}`),
      make("p", { class: "soft" }, "Each launch: the level that it found (grey), its forward and its backward as "
        + "planned (blue, green), what was measured (a line across). A click opens its graph."),
      make("canvas", { id: "launches" }), make("div", { class: "scroll" }, table)),
    step.outside.length ? make("section", { class: "panel" }, make("h2", {}, "Outside of the graphs"), outside) : "",
    known.length ? make("section", { class: "panel" }, make("dl", {},
      ...known.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]))) : "",
    make("section", { class: "panel" }, make("h2", {}, "Notes"),
      ...step.notes.map((note) => make("p", { class: "soft" }, note))),
  );
  return () => drawLaunches(page, step);
}

function drawLaunches(page, step) {
  const canvas = $("launches");
  const scale = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  if (!width) return;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const ink = canvas.getContext("2d");
  ink.scale(scale, scale);
  const all = step.launches.flatMap((launch) => [launch.level, ...launch.planned, ...launch.measured]);
  const top = 1.08 * Math.max(step.budget, ...all.filter((size) => size !== null), ...step.outside.map((row) => row[3]));
  const y = (size) => height - 20 - (size / top) * (height - 34);
  const room = (width - LEFT - RIGHT) / step.launches.length;
  ink.font = "11px system-ui, sans-serif";
  step.launches.forEach((launch, n) => {
    const x = LEFT + n * room;
    const bar = Math.min(60, room * 0.4);
    launch.planned.forEach((peak, side) => {
      const left = x + side * bar + room * 0.08;
      ink.fillStyle = GREYS[1];
      ink.fillRect(left, y(launch.level), bar - 2, y(0) - y(launch.level));
      if (peak !== null) {
        ink.fillStyle = side ? DOING.backward : DOING.forward;
        ink.fillRect(left, y(peak), bar - 2, y(launch.level) - y(peak));
      }
      const measured = launch.measured[side];
      if (measured !== null) {
        ink.fillStyle = page.colour("--ink");
        ink.fillRect(left - 3, y(measured) - 1, bar + 4, 2);
      }
    });
    if (room > 44) {
      ink.fillStyle = page.colour("--soft");
      ink.fillText(launch.graph, x + room * 0.08, height - 6, room * 0.88);
    }
  });
  ink.strokeStyle = ink.fillStyle = page.colour("--budget");
  ink.setLineDash([7, 4]);
  ink.beginPath();
  ink.moveTo(LEFT, y(step.budget));
  ink.lineTo(width - RIGHT, y(step.budget));
  ink.stroke();
  ink.fillText(`budget ${bytes(step.budget)}`, 2, y(step.budget) - 4);
  ink.setLineDash([]);
}
