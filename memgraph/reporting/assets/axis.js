// Where a state stands on the horizontal axis: by the order of events, or by predicted time.

class Axis {
  constructor(part, timed) {
    this.part = part;
    this.timed = timed;
    const planned = part.planned;
    this.end = timed ? Math.max(part.end, planned.at[planned.events], part.unplanned.at[part.unplanned.events])
      : planned.events + 1;
    this.end = this.end || 1;
    // By track and state, where the state begins. On the axis of order the unplanned step is stretched: its forward
    // lies over the planned one's, and its backward too.
    this.starts = new Map([[planned, this.placesOf(planned)], [part.unplanned, this.placesOf(part.unplanned)]]);
  }

  placesOf(track) {
    if (this.timed) return track.at;
    const planned = this.part.planned;
    const found = new Float64Array(track.events + 1);
    for (let k = 0; k <= track.events; k++) {
      found[k] = k <= track.forward
        ? (k * planned.forward) / (track.forward || 1)
        : planned.forward + ((k - track.forward) * (planned.events - planned.forward))
          / ((track.events - track.forward) || 1);
    }
    return found;
  }

  // The last state that begins at or before a place.
  state(track, place) {
    const starts = this.starts.get(track);
    let low = 0;
    let high = track.events;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // Where a moment, in seconds, lies on the axis.
  ofTime(time) {
    if (this.timed) return time;
    const at = this.part.planned.at;
    if (!at) return 0;
    let low = 0;
    let high = at.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle] >= time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // By column of pixels, the states with the most and the fewest bytes among those that it shows.
  columns(track, view, width) {
    const starts = this.starts.get(track);
    const total = track.total;
    const most = new Int32Array(width);
    const least = new Int32Array(width);
    let k = this.state(track, view.low);
    for (let x = 0; x < width; x++) {
      const end = view.low + ((x + 1) * (view.high - view.low)) / width;
      let high = k;
      let low = k;
      while (k < track.events && starts[k + 1] < end) {
        k += 1;
        if (total[k] > total[high]) high = k;
        if (total[k] < total[low]) low = k;
      }
      most[x] = high;
      least[x] = low;
    }
    return { most, least };
  }

  label(place) {
    if (this.timed) return seconds(place);
    const k = Math.max(0, Math.min(this.part.planned.events, Math.round(place)));
    return `event ${k.toLocaleString("en")}`;
  }
}
