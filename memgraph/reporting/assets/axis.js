// Where a state stands on the horizontal axis: by the order of events, or by predicted time.

class Axis {
  constructor(part, timed) {
    this.part = part;
    this.timed = timed;
    const planned = part.planned;
    const last = (track) => (track.at ? track.at[track.events] : 0);
    this.end = timed ? Math.max(part.end, last(planned), last(part.unplanned)) : planned.events + 1;
    this.end = this.end || 1;
    // By track and state, where the state begins. A step without times, and on the axis of order the unplanned one, is
    // stretched: its forward lies over the planned one's, and its backward too.
    this.starts = new Map([[planned, this.placesOf(planned)], [part.unplanned, this.placesOf(part.unplanned)]]);
  }

  placesOf(track) {
    if (this.timed && track.at) return track.at;
    const { planned } = this.part;
    const middle = this.timed ? planned.at[planned.forward] : planned.forward;
    const end = this.timed ? planned.at[planned.events] : planned.events;
    const found = new Float64Array(track.events + 1);
    for (let k = 0; k <= track.events; k++) {
      found[k] = k <= track.forward
        ? (k * middle) / (track.forward || 1)
        : middle + ((k - track.forward) * (end - middle)) / ((track.events - track.forward) || 1);
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
