// The curve of allocated bytes, and over it the moments that the reader points at. Each column of pixels shows the
// highest of its states, so no peak is lost however many events a column has.

const LEFT = 78;
const TOP = 16;
const AXIS = 22; // pixels below the curve, for its labels
const LANE = 17;
const RIGHT = 14;

class Chart {
  constructor(page) {
    this.page = page;
    this.curve = $("curve");
    this.over = $("over");
  }

  // The room of the curve, in CSS pixels.
  get box() {
    const { width, height } = this.size;
    const lanes = this.page.part.lanes.length;
    const bottom = height - AXIS - (lanes ? lanes * LANE + 6 : 0);
    return { left: LEFT, right: width - RIGHT, top: TOP, bottom, width: width - RIGHT - LEFT, height: bottom - TOP };
  }

  fit() {
    const scale = window.devicePixelRatio || 1;
    const room = $("stage").getBoundingClientRect();
    this.size = { width: Math.max(200, Math.round(room.width)), height: Math.max(160, Math.round(room.height)) };
    for (const canvas of [this.curve, this.over]) {
      canvas.width = this.size.width * scale;
      canvas.height = this.size.height * scale;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
  }

  x(place) {
    const { low, high } = this.page.view;
    return LEFT + ((place - low) / (high - low)) * this.box.width;
  }

  y(size) {
    const box = this.box;
    return box.bottom - (size / (this.page.part.top * 1.06)) * box.height;
  }

  place(x) {
    const { low, high } = this.page.view;
    return low + ((x - LEFT) / this.box.width) * (high - low);
  }

  // What lies on each other from the bottom: a name, a colour, and the bytes in a state.
  layers() {
    const { part } = this.page;
    let grey = 0;
    const standing = part.data.standing.map(([name, size]) => ({
      name, colour: COLOURS[name] || GREYS[grey++ % GREYS.length], of: () => size, most: size,
    }));
    const kinds = part.stuff.map((name, i) => {
      const row = part.planned.byKind[i];
      return { name, colour: COLOURS[name], of: (state) => row[state], most: part.planned.most[i] };
    });
    return [...standing, ...kinds].filter((layer) => layer.most > 0);
  }

  draw() {
    const started = performance.now();
    const { page } = this;
    const ink = this.curve.getContext("2d");
    const box = this.box;
    ink.clearRect(0, 0, this.size.width, this.size.height);
    this.grid(ink, box);
    const width = Math.max(1, Math.floor(box.width));
    this.shown = page.axis.columns(page.part.planned, page.view, width);
    const floor = new Float64Array(width);
    const parts = this.layers();
    for (const layer of parts) {
      ink.fillStyle = layer.colour;
      ink.beginPath();
      for (let x = 0; x < width; x++) {
        const size = layer.of(this.shown.most[x]);
        if (size <= 0) continue;
        const bottom = this.y(floor[x]);
        floor[x] += size;
        const top = this.y(floor[x]);
        ink.rect(LEFT + x, top, 1, bottom - top);
      }
      ink.fill();
    }
    this.line(ink, page.part.unplanned, width, page.colour("--soft"));
    this.bounds(ink, box);
    drawOutside(this, ink, box);
    this.mark(ink);
    drawLanes(this, ink, box);
    this.spent = performance.now() - started;
  }

  grid(ink, box) {
    const { page } = this;
    const top = page.part.top * 1.06;
    ink.font = "11px system-ui, sans-serif";
    ink.lineWidth = 1;
    ink.textAlign = "right";
    ink.textBaseline = "middle";
    const unit = 1024 ** Math.max(0, Math.floor(Math.log(top) / Math.log(1024)));
    const raw = top / unit / 8;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = unit * power * ([1, 2, 5, 10].find((n) => n * power >= raw) || 10);
    for (let size = 0; size <= top; size += step) {
      const y = Math.round(this.y(size)) + 0.5;
      ink.strokeStyle = page.colour("--line");
      ink.beginPath();
      ink.moveTo(box.left, y);
      ink.lineTo(box.right, y);
      ink.stroke();
      ink.fillStyle = page.colour("--soft");
      ink.fillText(bytes(size), box.left - 8, y);
    }
    ink.textBaseline = "top";
    const middle = page.axis.starts.get(page.part.planned)[page.part.planned.forward];
    const { low, high } = page.view;
    for (const [from, to, name] of [[0, middle, "forward"], [middle, page.axis.end, "backward"]]) {
      const start = Math.max(low, from);
      const end = Math.min(high, to);
      if (end <= start) continue;
      ink.textAlign = "center";
      ink.fillText(name, this.x((start + end) / 2), box.bottom + 6);
    }
    ink.textAlign = "left";
    ink.fillText(page.axis.label(low), box.left, box.bottom + 6);
    ink.textAlign = "right";
    ink.fillText(page.axis.label(high), box.right, box.bottom + 6);
    if (middle > low && middle < high) {
      ink.strokeStyle = page.colour("--soft");
      ink.beginPath();
      ink.moveTo(Math.round(this.x(middle)) + 0.5, box.top);
      ink.lineTo(Math.round(this.x(middle)) + 0.5, box.bottom + 4);
      ink.stroke();
    }
  }

  line(ink, track, width, colour) {
    const shown = this.page.axis.columns(track, this.page.view, width);
    ink.strokeStyle = colour;
    ink.lineWidth = 1.5;
    ink.beginPath();
    for (let x = 0; x < width; x++) {
      const y = this.y(track.total[shown.most[x]]);
      if (x === 0) ink.moveTo(LEFT, y);
      else ink.lineTo(LEFT + x, y);
      if (shown.least[x] !== shown.most[x]) ink.lineTo(LEFT + x, this.y(track.total[shown.least[x]]));
    }
    ink.stroke();
    ink.lineWidth = 1;
  }

  // The budget, what of it is not held back where that is seen to be less, and what was measured.
  bounds(ink, box) {
    const { data } = this.page.part;
    const red = this.page.colour("--budget");
    const lines = [];
    if (data.budget !== null) {
      lines.push([data.budget, `budget ${bytes(data.budget)}`, red, [7, 4]]);
      const usable = data.budget - data.reserve;
      if (this.y(usable) - this.y(data.budget) > 13) lines.push([usable, "less what is held back", red, [2, 3]]);
    }
    if (data.measured_peak !== null) {
      lines.push([data.measured_peak, `measured ${bytes(data.measured_peak)}`, this.page.colour("--good"), [10, 3, 2, 3]]);
    }
    ink.textBaseline = "bottom";
    for (const [size, text, colour, dashes] of lines) {
      const y = Math.round(this.y(size)) + 0.5;
      ink.strokeStyle = ink.fillStyle = colour;
      ink.lineWidth = 1.5;
      ink.setLineDash(dashes);
      ink.beginPath();
      ink.moveTo(box.left, y);
      ink.lineTo(box.right, y);
      ink.stroke();
      ink.setLineDash([]);
      const right = colour === red;
      ink.textAlign = right ? "right" : "left";
      label(ink, this.page, text, right ? box.right - 4 : box.left + 4, y - 2);
    }
    ink.lineWidth = 1;
  }

  // The peak of the plan.
  mark(ink) {
    const { page } = this;
    const { planned } = page.part;
    const x = this.x(page.middle(planned.peak));
    if (x < LEFT - 4 || x > this.box.right + 4) return;
    const y = this.y(planned.total[planned.peak]);
    ink.fillStyle = ink.strokeStyle = page.colour("--peak");
    ink.beginPath();
    ink.arc(x, y, 4.5, 0, 7);
    ink.fill();
    const right = x > this.box.right - 130;
    ink.textAlign = right ? "right" : "left";
    ink.textBaseline = "bottom";
    ink.font = "600 12px system-ui, sans-serif";
    label(ink, page, `peak ${bytes(planned.total[planned.peak])}`, x + (right ? -9 : 9), y - 1);
  }

  // What moves with the pointer: the lifetime of the chosen buffer, the chosen moment, the one pointed at.
  drawOver(pointed) {
    const { page } = this;
    const ink = this.over.getContext("2d");
    const box = this.box;
    ink.clearRect(0, 0, this.size.width, this.size.height);
    ink.save();
    ink.beginPath();
    ink.rect(box.left, 0, box.width, this.size.height);
    ink.clip();
    if (page.selected !== null) this.lifetime(ink, box, page.selected);
    const line = (place, colour, dashes) => {
      const x = Math.round(this.x(place)) + 0.5;
      ink.strokeStyle = colour;
      ink.setLineDash(dashes);
      ink.beginPath();
      ink.moveTo(x, 4);
      ink.lineTo(x, this.size.height - 4);
      ink.stroke();
      ink.setLineDash([]);
    };
    line(page.middle(page.state), page.colour("--ink"), []);
    if (pointed !== undefined) line(pointed, page.colour("--soft"), [3, 3]);
    ink.restore();
  }

  lifetime(ink, box, i) {
    const { page } = this;
    const track = page.part.planned;
    const starts = page.axis.starts.get(track);
    const from = this.x(starts[track.birth[i] + 1]);
    const to = track.death[i] >= track.events ? box.right : this.x(starts[track.death[i] + 1]);
    const width = Math.max(2, to - from);
    ink.fillStyle = page.colour("--shade");
    ink.fillRect(from, box.top, width, box.height);
    const height = Math.max(3, this.y(0) - this.y(track.size[i]));
    ink.fillStyle = COLOURS[page.part.stuff[track.stuff[i]]];
    ink.fillRect(from, box.bottom - height, width, height);
    ink.strokeStyle = page.colour("--peak");
    ink.lineWidth = 2;
    ink.strokeRect(from, box.bottom - height, width, height);
    ink.lineWidth = 1;
  }
}
