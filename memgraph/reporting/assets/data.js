// The data of the page: columns of numbers as typed arrays, and what follows from them.

async function inflated(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

function running(differences) {
  const found = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < differences.length; i++) found[i] = sum += differences[i];
  return found;
}

// One timeline. State k is what stands after k events; there are events + 1 of them.
class Track {
  constructor(data, level, kinds) {
    const count = data.birth.length;
    this.events = data.events;
    this.forward = data.forward;
    this.birth = Int32Array.from(running(data.birth));
    this.death = Int32Array.from(data.life, (life, i) => (life ? this.birth[i] + life : data.events));
    this.size = Float64Array.from(data.size, (place) => data.sizes[place]);
    this.stuff = Uint8Array.from(data.stuff);
    this.value = Int32Array.from(data.value);
    this.count = count;
    this.total = new Float64Array(data.events + 1).fill(0);
    this.byKind = Array.from({ length: kinds }, () => new Float64Array(data.events + 1));
    for (let i = 0; i < count; i++) {
      const row = this.byKind[this.stuff[i]];
      row[this.birth[i] + 1] += this.size[i];
      if (this.death[i] < data.events) row[this.death[i] + 1] -= this.size[i];
    }
    for (const row of this.byKind) {
      for (let k = 1; k <= data.events; k++) row[k] += row[k - 1];
    }
    this.most = this.byKind.map((row) => row.reduce((most, size) => Math.max(most, size), 0));
    this.peak = 0;
    for (let k = 0; k <= data.events; k++) {
      let sum = level;
      for (const row of this.byKind) sum += row[k];
      this.total[k] = sum;
      if (sum > this.total[this.peak]) this.peak = k;
    }
    this.at = this.times(data.at);
  }

  // By state, the second in which it begins; null where times are not known. Times never go back.
  times(differences) {
    if (!differences.length) return null;
    const found = new Float64Array(this.events + 1);
    const read = running(differences);
    for (let k = 1; k <= this.events; k++) found[k] = Math.max(found[k - 1], read[k - 1] / 1e9);
    return found;
  }

  // The buffers that stand in a state.
  live(state) {
    const found = [];
    for (let i = 0; i < this.count && this.birth[i] < state; i++) {
      if (this.death[i] >= state) found.push(i);
    }
    return found;
  }
}

// One planned graph.
class Part {
  constructor(data) {
    this.data = data;
    this.texts = data.texts;
    this.stuff = data.stuff;
    this.planned = new Track(data.planned, data.level, data.stuff.length);
    this.unplanned = new Track(data.unplanned, data.level, data.stuff.length);
    this.values = new Map();
    data.values.name.forEach((place, i) => this.values.set(place, i));
    this.decided = new Map();
    data.decisions.name.forEach((place, i) => {
      if (!this.decided.has(place)) this.decided.set(place, i);
    });
    this.fused = new Set(data.decisions.fused);
    const works = data.works;
    this.lanes = [...new Set(works.lane)];
    this.worked = works.start.length;
    this.end = 0;
    works.start.forEach((start, i) => {
      this.end = Math.max(this.end, (start + works.length[i]) / 1e9);
    });
    this.top = Math.max(
      data.budget || 0, data.measured_peak || 0, ...(data.outside || []).map((item) => item.peak),
      this.planned.total[this.planned.peak], this.unplanned.total[this.unplanned.peak], 1,
    );
  }

  get timed() {
    return this.planned.at !== null;
  }

  // What is known of a buffer's value, by the place of its name.
  value(place) {
    const i = this.values.get(place);
    const known = this.data.values;
    const text = (column) => (i === undefined ? "" : this.texts[known[column][i]]);
    return {
      name: this.texts[place], operator: text("operator"), type: text("type"),
      module: text("module"), source: text("source"),
      reads: i === undefined ? [] : running(known.reads[i]),
    };
  }

  decision(i) {
    if (i === undefined) return null;
    const known = this.data.decisions;
    const text = (column) => this.texts[known[column][i]];
    return {
      name: text("name"), action: text("action"), bytes: known.bytes[i], seconds: known.seconds[i],
      module: text("module"), source: text("source"), why: text("why"), fused: this.fused.has(i),
      others: known.others[i].map(([place, time]) => [this.texts[place], time]),
    };
  }

  // When a buffer's value is read next after a state, in seconds; null where that is not known, or never is.
  nextRead(i, state) {
    const track = this.planned;
    if (!track.at) return null;
    const now = track.at[state];
    const end = track.at[Math.min(track.death[i], track.events)];
    const known = this.values.get(track.value[i]);
    if (known === undefined) return null;
    let sum = 0;
    for (const step of this.data.values.reads[known]) {
      sum += step;
      if (sum / 1e9 > now && sum / 1e9 <= end) return sum / 1e9;
    }
    return null;
  }
}
