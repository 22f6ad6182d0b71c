// What is live at the chosen moment, and what is known of the chosen buffer.

const ROWS = 200;

class Live {
  constructor(page) {
    this.page = page;
    this.rows = $("rows");
    $("sort").addEventListener("change", () => this.show());
    $("search").addEventListener("input", () => {
      this.show();
      page.model.show();
    });
  }

  matches(...texts) {
    const wanted = $("search").value.trim().toLowerCase();
    return !wanted || texts.some((text) => text.toLowerCase().includes(wanted));
  }

  // The buffers of the chosen state that the search finds, in the order that is asked for.
  found() {
    const { part, state } = this.page;
    const track = part.planned;
    const standing = track.live(state).filter((i) => {
      const value = part.value(track.value[i]);
      return this.matches(value.name, value.operator, value.module, basename(value.source), part.stuff[track.stuff[i]]);
    });
    const order = $("sort").value;
    if (order === "birth") return standing.sort((a, b) => track.birth[a] - track.birth[b]);
    if (order === "next") {
      const next = new Map(standing.map((i) => [i, part.nextRead(i, state) ?? Infinity]));
      return standing.sort((a, b) => next.get(b) - next.get(a) || track.size[b] - track.size[a]);
    }
    return standing.sort((a, b) => track.size[b] - track.size[a] || track.birth[a] - track.birth[b]);
  }

  show() {
    const { part, state, axis } = this.page;
    const track = part.planned;
    const found = this.found();
    const total = track.total[state];
    const which = state === track.peak ? "the peak" : axis.label(axis.starts.get(track)[state]);
    $("moment").replaceChildren(`Live at ${which}: ${bytes(total)}`);
    $("moment").dataset.bytes = total;
    const head = make("tr", {},
      make("th", { class: "number" }, "bytes"), make("th", {}, "kind"), make("th", {}, "value"),
      make("th", {}, "module"), make("th", { class: "wide" }, "operator"), make("th", { class: "wide" }, "type"),
      make("th", { class: "number" }, "next use"));
    const body = make("tbody");
    let grey = 0;
    for (const [name, size] of part.data.standing) {
      if (!this.matches(name)) continue;
      body.append(make("tr", { "data-standing": size },
        make("td", { class: "number" }, bytes(size)), this.kind(name, COLOURS[name] || GREYS[grey++ % GREYS.length]),
        make("td", { colspan: 5, class: "soft" }, "stands from the start to the end")));
    }
    for (const i of found.slice(0, ROWS)) body.append(this.row(i, state));
    if (found.length > ROWS) {
      const rest = found.slice(ROWS).reduce((sum, i) => sum + track.size[i], 0);
      body.append(make("tr", {}, make("td", { class: "number" }, bytes(rest)),
        make("td", { colspan: 6, class: "soft" }, `${found.length - ROWS} more`)));
    }
    this.rows.replaceChildren(make("thead", {}, head), body);
  }

  kind(name, colour) {
    return make("td", { class: "kind" }, make("i", { style: `background:${colour}` }), name);
  }

  row(i, state) {
    const { part } = this.page;
    const track = part.planned;
    const value = part.value(track.value[i]);
    const stuff = part.stuff[track.stuff[i]];
    return make("tr", {
      class: "open", "data-buffer": i, "data-bytes": track.size[i],
      "aria-selected": String(this.page.selected === i), onclick: () => this.page.select(i),
    },
    make("td", { class: "number" }, bytes(track.size[i])), this.kind(stuff, COLOURS[stuff]),
    make("td", {}, value.name), make("td", {}, value.module),
    make("td", { class: "wide" }, value.operator), make("td", { class: "wide" }, value.type),
    make("td", { class: "number" }, this.next(i, state)));
  }

  next(i, state) {
    const { part } = this.page;
    const read = part.nextRead(i, state);
    if (read === null) return "";
    return `in ${seconds(read - part.planned.at[state])}`;
  }

  // What is known of the chosen buffer, or of a decision where nothing of it is allocated.
  facts(i, decisionPlace) {
    const { part, axis } = this.page;
    const track = part.planned;
    const place = i === null ? part.data.decisions.name[decisionPlace] : track.value[i];
    const value = part.value(place);
    const decision = part.decision(i === null ? decisionPlace : part.decided.get(place));
    const rows = [["value", value.name]];
    if (i !== null) {
      const starts = axis.starts.get(track);
      const gone = track.death[i] >= track.events ? "outlives the step" : axis.label(starts[track.death[i] + 1]);
      rows.push(["kind", part.stuff[track.stuff[i]]], ["bytes", `${bytes(track.size[i])} (${track.size[i]})`],
        ["lives", `${axis.label(starts[track.birth[i] + 1])} to ${gone}`]);
    } else rows.push(["bytes", bytes(decision.bytes)]);
    rows.push(["operator", value.operator], ["type", value.type], ["module", value.module || decision?.module],
      ["source", value.source || decision?.source]);
    if (decision) {
      rows.push(["decision", decision.action + (decision.fused ? " (fused, never held)" : "")], ["why", decision.why]);
      if (decision.seconds) rows.push(["costs", `${seconds(decision.seconds)} of recomputation a step`]);
      for (const [action, time] of decision.others) rows.push([`or ${action}`, `${seconds(time)} by itself`]);
    }
    $("facts").replaceChildren(make("dl", {}, ...rows.filter(([, text]) => text)
      .flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])));
  }
}
