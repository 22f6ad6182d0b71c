// The model as rows: equal layers are one row, which opens into its parts, and these into their values.

class Model {
  constructor(page) {
    this.page = page;
    this.table = $("model");
    this.open = new Set();
  }

  columns() {
    const { model } = this.page.part.data;
    const all = [
      ["kept", (row) => row.kept], ["dropped", (row) => row.dropped], ["on the host", (row) => row.host],
      ["on disk", (row) => row.nvme],
    ].filter(([name, of]) => name === "kept" || model.some((row) => of(row)));
    const times = [["computed again", (row) => row.seconds], ["waits", (row) => row.waits]]
      .filter(([, of]) => model.some((row) => of(row)));
    return { all, times, shards: model.some((row) => row.shards) };
  }

  show() {
    const { part } = this.page;
    const searching = $("search").value.trim() !== "";
    const columns = this.columns();
    const head = make("tr", {}, make("th", {}, "module"),
      ...columns.all.map(([name]) => make("th", { class: "number" }, name)),
      columns.shards ? make("th", { class: "number" }, "shards") : null,
      ...columns.times.map(([name]) => make("th", { class: "number" }, name)), make("th", {}, "why"));
    const body = make("tbody");
    part.data.model.forEach((group, number) => {
      const name = `${group.label}${group.count > 1 ? `  ×${group.count}${group.equal ? "" : ", nearly equal"}` : ""}`;
      const parts = group.parts.map((some) => ({
        ...some,
        found: some.decisions.filter((i) => this.finds(i)),
      })).filter((some) => !searching || some.found.length);
      if (searching && !parts.length && !this.page.live.matches(group.label)) return;
      const open = this.open.has(`${number}`) || (searching && parts.length > 0);
      body.append(this.row(columns, name, group, "open group", open, () => this.toggle(`${number}`), number));
      if (open) parts.forEach((some, at) => this.addPart(body, columns, some, `${number} ${at}`, searching));
    });
    this.table.replaceChildren(make("thead", {}, head), body);
  }

  addPart(body, columns, some, key, searching) {
    const open = this.open.has(key);
    body.append(this.row(columns, some.label, some, "open part", open, () => this.toggle(key)));
    if (!open) return;
    for (const i of (searching ? some.found : some.decisions).slice(0, ROWS)) {
      const decision = this.page.part.decision(i);
      const amounts = { kept: 0, dropped: 0, host: 0, nvme: 0, seconds: decision.seconds, waits: 0 };
      const key = { save: "kept", recompute: "dropped" }[decision.action] || decision.action.replace("offload:", "");
      if (!decision.fused) amounts[key] = decision.bytes;
      const row = this.row(columns, decision.name, amounts, "open value", undefined, () => this.page.choose(i));
      row.lastChild.textContent = decision.why + (decision.fused ? " (fused, never held)" : "");
      body.append(row);
    }
  }

  finds(i) {
    const decision = this.page.part.decision(i);
    return this.page.live.matches(decision.name, decision.module, decision.why, basename(decision.source));
  }

  toggle(key) {
    if (!this.open.delete(key)) this.open.add(key);
    this.show();
  }

  row(columns, name, amounts, kind, open, act, number) {
    const sign = open === undefined ? "" : open ? "▾ " : "▸ ";
    const size = (value) => make("td", { class: "number", "data-bytes": value }, value ? bytes(value) : "-");
    const time = (value) => make("td", { class: "number", "data-seconds": value }, value ? seconds(value) : "-");
    const row = make("tr", { class: kind, onclick: act, "data-group": number }, make("td", {}, sign + name),
      ...columns.all.map(([, of]) => size(of(amounts))),
      columns.shards ? make("td", { class: "number" }, amounts.shards || "") : null,
      ...columns.times.map(([, of]) => time(of(amounts))), make("td", { class: "soft" }, amounts.why || ""));
    return row;
  }
}

// What was refused, and what a reader should know.
function showNotes(part) {
  const { refusals, notes, stages, versions, attempts } = part.data;
  const list = (rows) => make("dl", {}, ...rows.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  $("refused").replaceChildren(...(refusals.length ? [make("h2", {}, "Refused"), list(refusals)] : []));
  const times = stages.map(([name, time]) => [name, seconds(time)]);
  const about = [["attempts", String(attempts)], ...versions];
  $("notes").replaceChildren(make("h2", {}, "Notes"),
    ...[...notes, outsideNote(part)].filter(Boolean).map((note) => make("p", { class: "soft" }, note)),
    list([...times, ...about]));
}
