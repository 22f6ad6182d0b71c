// The curve as SVG, the buffers as CSV.

function save(name, type, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

function csv(part) {
  const track = part.planned;
  const quoted = (cell) => (/[",\n]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));
  const head = "value,kind,bytes,born,freed,born s,freed s,operator,type,module,source,decision,why".split(",");
  const rows = [head];
  for (let i = 0; i < track.count; i++) {
    const value = part.value(track.value[i]);
    const decision = part.decision(part.decided.get(track.value[i]));
    const stays = track.death[i] >= track.events;
    rows.push([
      value.name, part.stuff[track.stuff[i]], track.size[i], track.birth[i], stays ? "" : track.death[i],
      track.at ? track.at[track.birth[i] + 1] : "", track.at && !stays ? track.at[track.death[i] + 1] : "",
      value.operator, value.type, value.module, value.source, decision?.action ?? "", decision?.why ?? "",
    ]);
  }
  return rows.map((row) => row.map(quoted).join(",")).join("\n");
}

// The part of the curve that is shown, as it is drawn.
function svg(chart) {
  const { page, size } = chart;
  const { part, axis, view } = page;
  const box = chart.box;
  const width = Math.floor(box.width);
  const shown = axis.columns(part.planned, view, width).most;
  const floor = new Float64Array(width);
  const pieces = [];
  for (const layer of chart.layers()) {
    const below = [];
    const above = [];
    for (let x = 0; x < width; x++) {
      below.push(`${LEFT + x},${chart.y(floor[x]).toFixed(1)}`);
      floor[x] += layer.of(shown[x]);
      above.push(`${LEFT + x},${chart.y(floor[x]).toFixed(1)}`);
    }
    const points = [...above, ...below.reverse()].join(" ");
    pieces.push(`<polygon fill="${layer.colour}" points="${points}"><title>${escaped(layer.name)}</title></polygon>`);
  }
  const other = axis.columns(part.unplanned, view, width).most;
  const line = Array.from(other, (k, x) => `${LEFT + x},${chart.y(part.unplanned.total[k]).toFixed(1)}`).join(" ");
  pieces.push(`<polyline fill="none" stroke="#5b6470" stroke-width="1.5" points="${line}"/>`);
  const rule = (bound, text, colour) => {
    const y = chart.y(bound).toFixed(1);
    pieces.push(`<line x1="${box.left}" x2="${box.right}" y1="${y}" y2="${y}" stroke="${colour}" stroke-dasharray="7 4"/>`,
      `<text x="${box.right}" y="${y - 4}" text-anchor="end" fill="${colour}">${escaped(text)}</text>`);
  };
  if (part.data.budget !== null) rule(part.data.budget, `budget ${bytes(part.data.budget)}`, "#c1121f");
  for (const { item, x, top, bottom } of outsideBars(chart)) {
    const height = Math.max(2, bottom - top).toFixed(1);
    pieces.push(`<rect x="${x.toFixed(1)}" y="${top.toFixed(1)}" width="${BAR}" height="${height}" fill="${OUTSIDE}">`
      + `<title>${escaped(outsideTold(item))}</title></rect>`);
  }
  const { peak, total } = part.planned;
  const x = chart.x(page.middle(peak)).toFixed(1);
  pieces.push(`<circle cx="${x}" cy="${chart.y(total[peak]).toFixed(1)}" r="4.5"/>`,
    `<text x="${x}" y="${(chart.y(total[peak]) - 8).toFixed(1)}">peak ${bytes(total[peak])}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${size.width}" height="${size.height}" `
    + `font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>`
    + `<title>${escaped($("title").textContent)}</title>${pieces.join("")}</svg>`;
}
