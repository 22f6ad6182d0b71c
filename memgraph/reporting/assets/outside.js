// What ran outside of the graphs right before this one, between its forward and its backward, and right after it: a bar
// at that place, from the bytes that stood when what comes next began to the most that were allocated before.

const OUTSIDE = "#6a3d9a";
const BAR = 9;

// The bars, in pixels.
function outsideBars(chart) {
  const { part, axis } = chart.page;
  const places = { begin: 0, middle: axis.starts.get(part.planned)[part.planned.forward], end: axis.end };
  const { low, high } = chart.page.view;
  return (part.data.outside || []).filter(({ place }) => places[place] >= low && places[place] <= high)
    .map((item) => {
      const shift = { begin: 1, middle: -BAR / 2, end: -BAR - 1 }[item.place];
      return { item, x: chart.x(places[item.place]) + shift, top: chart.y(item.peak), bottom: chart.y(item.level) };
    });
}

const outsideTold = ({ after, before, level, peak }) => `outside, from the ${after} to the ${before}: `
  + `${bytes(peak - level)}, up to ${bytes(peak)}`;

function drawOutside(chart, ink, box) {
  ink.font = "11px system-ui, sans-serif";
  ink.textBaseline = "bottom";
  for (const { item, x, top, bottom } of outsideBars(chart)) {
    ink.fillStyle = OUTSIDE;
    ink.fillRect(x, top, BAR, Math.max(2, bottom - top));
    ink.strokeStyle = chart.page.colour("--panel");
    ink.strokeRect(x - 0.5, top - 0.5, BAR + 1, Math.max(2, bottom - top) + 1);
    const right = x > box.right - 120;
    ink.textAlign = right ? "right" : "left";
    ink.fillStyle = chart.page.colour("--ink");
    label(ink, chart.page, `outside ${bytes(item.peak - item.level)}`, right ? x + BAR : x, top - 3);
  }
}

// What a point of the curve says of a bar; undefined beside them.
function outsideAt(chart, x, y) {
  const found = outsideBars(chart).find((bar) => x >= bar.x - 2 && x <= bar.x + BAR + 2
    && y >= bar.top - 2 && y <= Math.max(bar.bottom, bar.top + 4));
  return found && outsideTold(found.item);
}

// Why no bar is shown, where none is.
function outsideNote(part) {
  if (part.data.outside === null) {
    return "What runs outside of the compiled graphs is measured in a step: memgraph.step_report().html(path) shows it.";
  }
  return part.data.outside.length ? "" : "Nothing that runs outside of the graphs was seen to take memory next to this one.";
}
