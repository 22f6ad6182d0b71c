// What the device and the copies do, one lane each, on the axis of the curve.

function laneTop(chart, lane) {
  return chart.box.bottom + AXIS + 4 + lane * LANE;
}

function drawLanes(chart, ink, box) {
  const { page } = chart;
  const { part, axis } = page;
  const works = part.data.works;
  ink.font = "11px system-ui, sans-serif";
  ink.textBaseline = "middle";
  part.lanes.forEach((lane, number) => {
    const y = laneTop(chart, number);
    ink.fillStyle = page.colour("--soft");
    ink.textAlign = "right";
    ink.fillText(part.texts[lane], box.left - 8, y + LANE / 2);
    ink.fillStyle = page.colour("--line");
    ink.fillRect(box.left, y + LANE - 2, box.width, 1);
  });
  ink.save();
  ink.beginPath();
  ink.rect(box.left, box.bottom, box.width, chart.size.height);
  ink.clip();
  const last = new Map(); // by lane and colour: the column that was filled last
  for (let i = 0; i < part.worked; i++) {
    const from = chart.x(axis.ofTime(works.start[i] / 1e9));
    const to = chart.x(axis.ofTime((works.start[i] + works.length[i]) / 1e9));
    if (to < box.left || from > box.right) continue;
    const lane = part.lanes.indexOf(works.lane[i]);
    const doing = part.texts[works.doing[i]];
    const key = `${lane} ${doing}`;
    const narrow = to - from < 1;
    if (narrow && last.get(key) === Math.floor(from)) continue;
    if (narrow) last.set(key, Math.floor(from));
    ink.fillStyle = DOING[doing];
    ink.fillRect(from, laneTop(chart, lane) + 1, Math.max(1, to - from - (to - from > 3 ? 0.5 : 0)), LANE - 5);
    if (to - from > 60) {
      ink.fillStyle = "#ffffff";
      ink.textAlign = "left";
      ink.save();
      ink.beginPath();
      ink.rect(from, laneTop(chart, lane), to - from, LANE);
      ink.clip();
      ink.fillText(part.texts[works.name[i]], Math.max(from, box.left) + 4, laneTop(chart, lane) + LANE / 2 - 1);
      ink.restore();
    }
  }
  ink.restore();
}

// The work at a point of the lanes; undefined where there is none.
function workAt(chart, x, y) {
  const { part, axis } = chart.page;
  const works = part.data.works;
  const lane = Math.floor((y - laneTop(chart, 0)) / LANE);
  if (lane < 0 || lane >= part.lanes.length) return undefined;
  for (let i = 0; i < part.worked; i++) {
    if (works.lane[i] !== part.lanes[lane]) continue;
    const from = chart.x(axis.ofTime(works.start[i] / 1e9));
    const to = chart.x(axis.ofTime((works.start[i] + works.length[i]) / 1e9));
    if (x >= from && x <= Math.max(to, from + 1)) {
      const doing = part.texts[works.doing[i]];
      return `${doing}: ${part.texts[works.name[i]] || "(no module)"}\n${seconds(works.length[i] / 1e9)}`;
    }
  }
  return undefined;
}
