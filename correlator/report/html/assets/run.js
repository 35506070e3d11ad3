// SPDX-License-Identifier: Apache-2.0
// A whole recording: sums over time, steps, spread, requests; each request opens on demand.

function binRow(run, columns) {
  const many = CATEGORIES.length;
  const edges = run.bins_ns;
  const made = columns.bin_category;
  const bins = edges.length - 1;
  const sums = Array.from({ length: bins }, (_, b) => {
    let sum = 0;
    for (let k = 0; k < many; k += 1) sum += made[b * many + k];
    return sum;
  });
  const rate = (b) => sums[b] / Math.max(1, edges[b + 1] - edges[b]);
  const most = Math.max(1e-9, ...sums.map((_, b) => rate(b)));
  return {
    label: ["requests in flight", "by category of path"], strong: true, height: 110, gap: 10,
    draw: (pen, area, view, chart) => {
      for (let b = 0; b < bins; b += 1) {
        const [x0, x1] = [Math.round(chart.x(edges[b])), Math.max(Math.round(chart.x(edges[b + 1])), Math.round(chart.x(edges[b])) + 1)];
        if (x1 < area.left || x0 > area.left + area.width || !sums[b]) continue;
        let y = area.top + area.height;
        for (let k = 0; k < many; k += 1) {
          const part = made[b * many + k];
          if (!part) continue;
          const height = ((part / (edges[b + 1] - edges[b])) / most) * (area.height - 2);
          y -= height;
          pen.fillStyle = fillOf(pen, CATEGORIES[k]);
          pen.fillRect(x0, y, x1 - x0, height + 0.4);
        }
      }
      pen.fillStyle = colours["@soft"];
      pen.textAlign = "right";
      pen.fillText(`max ${most.toPrecision(3)} in flight`, area.left + area.width - 3, area.top + 7);
    },
    at: (t) => {
      const b = lastAtMost(edges, t, bins);
      if (b < 0) return null;
      const parts = [];
      for (let k = 0; k < many; k += 1) if (made[b * many + k]) parts.push([CATEGORIES[k], made[b * many + k]]);
      parts.sort((a, c) => c[1] - a[1]);
      return { lines: [make("b", {}, `${rate(b).toPrecision(3)} requests in flight`), make("div", { class: "soft" }, `+${duration(edges[b], 4)} to +${duration(edges[b + 1], 4)}`),
        ...parts.slice(0, 6).map(([name, ns]) => make("div", {}, chip(name), `${name} ${share(ns, sums[b])}`))] };
    },
    table: () => binTable(run, made),
  };
}

function binTable(run, made) {
  const many = CATEGORIES.length;
  const bins = run.bins_ns.length - 1;
  const step = Math.max(1, Math.ceil(bins / 24));
  const rows = [];
  for (let b = 0; b < bins; b += step) {
    const sums = new Array(many).fill(0);
    const last = Math.min(bins, b + step);
    for (let i = b; i < last; i += 1) for (let k = 0; k < many; k += 1) sums[k] += made[i * many + k];
    const whole = sums.reduce((x, y) => x + y, 0);
    const top = sums.map((ns, k) => [CATEGORIES[k], ns]).filter(([, ns]) => ns).sort((x, y) => y[1] - x[1]);
    rows.push([`+${duration(run.bins_ns[b], 4)}`, (whole / (run.bins_ns[last] - run.bins_ns[b])).toPrecision(3), duration(whole), top.slice(0, 4).map(([name, ns]) => `${name} ${share(ns, whole)}`).join(", ")]);
  }
  return table("Requests in flight over time, and where their time went", [{ name: "from" }, { name: "in flight" }, { name: "request time" }, { name: "mostly", left: true }], rows);
}

// Steps: tokens by kind as columns, lengths as the longest of each pixel.
function stepRows(columns, open) {
  const { s_at: at, s_wall: wall, s_tokens: tokens, s_prefill: prefill } = columns;
  if (!at.length) return [];
  const mostTokens = tokens.reduce((a, b) => Math.max(a, b), 1);
  const mostWall = wall.reduce((a, b) => Math.max(a, b), 1);
  const order = Array.from(at, (_, i) => i).sort((a, b) => at[a] - at[b]);
  const starts = Float64Array.from(order, (i) => at[i]);
  const nearest = (t) => order[Math.max(0, lastAtMost(starts, t))];
  const lines = (i) => ({
    lines: [make("b", {}, `step ${columns.s_step[i]}`), ` ${word(columns.s_kind[i])}, ${duration(wall[i])}`,
      make("div", {}, `${plural(columns.s_rows[i], "row")}, ${plural(tokens[i], "token")}, ${count(prefill[i])} of them prefill, ${count(columns.s_waiting[i])} waiting`),
      make("div", { class: "soft" }, `longest stretch ${word(columns.s_longest[i]) || "unknown"}`)],
    select: () => open(i),
  });
  const perPixel = (view, area, value) => {
    const found = new Map();
    const scale = area.width / (view.to - view.from);
    for (let k = Math.max(0, lastAtMost(starts, view.from)); k < order.length && starts[k] < view.to; k += 1) {
      const i = order[k];
      const x = Math.floor((at[i] - view.from) * scale);
      const known = found.get(x);
      if (known === undefined || value(i) > value(known)) found.set(x, i);
    }
    return found;
  };
  return [{
    label: ["tokens a step", "prefill, decode"], height: 48, gap: 8,
    draw: (pen, area, view) => {
      for (const [x, i] of perPixel(view, area, (one) => tokens[one])) {
        const wide = Math.max(1, Math.min(5, (area.width * wall[i]) / (view.to - view.from) - 1));
        const full = (tokens[i] / mostTokens) * (area.height - 2);
        const part = (prefill[i] / mostTokens) * (area.height - 2);
        pen.fillStyle = colours["phase-decode"];
        pen.fillRect(area.left + x, area.top + area.height - full, wide, full - part);
        pen.fillStyle = colours["phase-prefill"];
        pen.fillRect(area.left + x, area.top + area.height - part, wide, part);
      }
      pen.fillStyle = colours["@soft"];
      pen.textAlign = "right";
      pen.fillText(`max ${plural(mostTokens, "token")}`, area.left + area.width - 3, area.top + 7);
    },
    at: (t) => lines(nearest(t)),
  }, {
    label: ["step length", "longest of each pixel"], height: 48, gap: 8,
    draw: (pen, area, view) => {
      for (const [x, i] of perPixel(view, area, (one) => wall[one])) {
        const y = area.top + area.height - (wall[i] / mostWall) * (area.height - 4) - 2;
        pen.fillStyle = colours["@ink"];
        pen.globalAlpha = 0.25;
        pen.fillRect(area.left + x, y, 1, area.top + area.height - y);
        pen.globalAlpha = 1;
        pen.fillRect(area.left + x - 0.5, y, 2.5, 2.5);
      }
      pen.fillStyle = colours["@soft"];
      pen.textAlign = "right";
      pen.fillText(`max ${duration(mostWall)}`, area.left + area.width - 3, area.top + 7);
    },
    at: (t) => lines(nearest(t)),
  }];
}

class RunView {
  constructor(open) {
    this.open = open;
    this.run = HEAD.run;
  }

  async element() {
    const { run } = this;
    const [{ columns }] = await block(run.block[0]);
    this.columns = columns;
    const series = await loadSeries();
    const bins = binRow(run, columns);
    this.chart = new Chart({
      label: "the recording over time: requests in flight by category, steps, and the host; the tables below hold the same",
      describe: "keys", length: HEAD.length_ns, keys: (event) => this.key(event),
      rows: [...(run.requests ? [bins] : []), ...stepRows(columns, (i) => this.openStep(i)), ...seriesRows(series, 0, HEAD.length_ns)],
    });
    const { by_category: categories, by_phase: phases, length_ns: whole } = run.sums;
    return make("article", { class: "document", "data-document": "run" },
      make("header", {},
        make("h1", {}, HEAD.title, " ", ledgerChip()),
        verdictLine(HEAD.claims, (claim) => this.follow(claim)),
        factList(HEAD.facts),
        make("p", { class: "note" }, run.meta.filter(([name]) => SHOWN.has(name)).map(([name, value]) => `${name} ${value}`).join(" · "))),
      section("time", "Over time", `Time counts from ${HEAD.origin} s (CLOCK_MONOTONIC).`, legend(categories.map(([name]) => name)),
        make("ul", { class: "legend" }, make("li", {}, chip("prefill", true), "prefill tokens"), make("li", {}, chip("decode", true), "decode tokens")),
        this.chart.box, make("p", { class: "hint", id: "keys" }, "Keys on the picture: ← → move the mark, Enter opens the step there, + − zoom, [ ] move, 0 all. Drag to zoom."),
        run.requests ? folded("As a table", bins.table(), seriesTable(series, 0, HEAD.length_ns)) : ""),
      run.requests ? section("shares", "Where the requests' time went", `${duration(whole, 4)} of all requests from arrival to last byte, and shares of it.`,
        make("div", { class: "two" }, bars("By category", categories, whole), bars("By phase", phases, whole, { phases: true }))) : "",
      run.requests ? section("actors", "Who held the path", "", namedBars("Path time of all requests by actor", "actor",
        [...run.actors.map(([name, ns]) => [word(name), ns]), ...(run.more_actors[0] ? [[plural(run.more_actors[0], "more actor"), run.more_actors[1]]] : [])], whole)) : "",
      run.requests ? spreadSection(run.spread) : "",
      this.steps(),
      this.requests(),
      section("host", "The host meanwhile", "", noteList(run.notes)),
      folded("All that is known of the engine", table("The engine", [{ name: "what", left: true }, { name: "value", left: true }], run.meta)));
  }

  follow(claim) {
    if (claim.category) return { href: "#shares" };
    return claim.to ? { href: `#${claim.to}` } : null;
  }

  key(event) {
    const chart = this.chart;
    const step = (chart.view.to - chart.view.from) / 60;
    const move = (t) => {
      chart.cursor = Math.min(Math.max(t, 0), chart.length);
      chart.show(chart.cursor, chart.cursor);
      const lines = chart.rows.slice(0, 3).map((row) => row.at?.(chart.cursor, 0, chart)?.lines).filter(Boolean);
      announce(lines.map((some) => some.map((one) => one.textContent ?? one).join(" ")).join(". "));
    };
    const at = chart.cursor ?? chart.view.from;
    if (event.key === "ArrowRight") move(at + step);
    else if (event.key === "ArrowLeft") move(at - step);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(chart.length);
    else if (event.key === "Enter") chart.rows.find((row) => row.label[0] === "step length")?.at(at, 0, chart)?.select();
    else return false;
    return true;
  }

  openStep(i) {
    const { s_block: where, s_place: place } = this.columns;
    if (where[i] >= 0) this.open("s", i, [where[i], place[i]]);
    else {
      this.stepGrid.go(this.stepGrid.order.indexOf(i));
      this.stepGrid.box.scrollIntoView({ block: "center" });
      announce(`step ${this.columns.s_step[i]} is in the list; its segments are in: gpucorrelate report --step ${this.columns.s_step[i]}`);
    }
  }

  steps() {
    const c = this.columns;
    if (!c.s_at.length) return section("steps", "Steps", "No step was seen.");
    const { slow } = this.run;
    const known = (i) => c.s_block[i] >= 0;
    this.stepGrid = new Grid({
      label: "steps of the engine", many: c.s_at.length, rows: 10, open: (i) => this.openStep(i),
      columns: [
        { name: "step", width: "80px", value: (i) => c.s_step[i], cell: (i) => (known(i) ? make("b", {}, String(c.s_step[i])) : String(c.s_step[i])) },
        { name: "began", width: "100px", value: (i) => c.s_at[i], cell: (i) => `+${duration(c.s_at[i], 5)}` },
        { name: "wall", width: "90px", value: (i) => c.s_wall[i], cell: (i) => lengthy(c.s_wall[i]) },
        { name: "worker", width: "90px", about: "busy time of the workers", value: (i) => c.s_worker[i], cell: (i) => (c.s_worker[i] < 0 ? "?" : lengthy(c.s_worker[i])) },
        { name: "kind", left: true, width: "80px", value: (i) => word(c.s_kind[i]), cell: (i) => word(c.s_kind[i]) },
        { name: "rows", width: "60px", value: (i) => c.s_rows[i], cell: (i) => count(c.s_rows[i]) },
        { name: "tokens", width: "70px", value: (i) => c.s_tokens[i], cell: (i) => count(c.s_tokens[i]) },
        { name: "prefill", width: "70px", value: (i) => c.s_prefill[i], cell: (i) => count(c.s_prefill[i]) },
        { name: "waiting", width: "70px", value: (i) => c.s_waiting[i], cell: (i) => count(c.s_waiting[i]) },
        { name: "longest stretch", left: true, width: "minmax(160px, 1fr)", value: (i) => word(c.s_longest[i]), cell: (i) => word(c.s_longest[i]) },
      ],
    });
    this.stepGrid.sort(2, true);
    const shared = slow ? make("div", { class: "two" },
      table("More frequent among the slow steps", [{ name: "what", left: true }, { name: `of ${slow.slow} slow` }, { name: "" }, { name: `of ${slow.others} others` }, { name: "" }],
        slow.traits.map(([what, few, many]) => [what, count(few), share(few, slow.slow), count(many), share(many, slow.others)])),
      table("Means", [{ name: "what", left: true }, { name: "slow" }, { name: "others" }], slow.means.map(([what, few, many]) => [what, few.toFixed(1), many.toFixed(1)]))) : "";
    return section("steps", "Steps, and what the slow ones share", slow ? slow.text : "Too few steps to tell slow ones from others.", shared,
      make("p", { class: "note" }, "Steps overlap: never sum these. Those in bold open with all their segments."), this.stepGrid.box);
  }

  requests() {
    const c = this.columns;
    const many = c.r_at.length;
    if (!many) return section("requests", "Requests", "The recording holds no request.");
    const known = (value) => (value < 0 ? "?" : lengthy(value));
    const width = CATEGORIES.length;
    const mix = (i) => {
      const pairs = [];
      for (let k = 0; k < width; k += 1) if (c.r_category[i * width + k]) pairs.push([CATEGORIES[k], c.r_category[i * width + k]]);
      pairs.sort((a, b) => b[1] - a[1]);
      return [stack(pairs, c.r_wall[i], pairs.slice(0, 3).map(([name, ns]) => `${name} ${share(ns, c.r_wall[i])}`).join(", "))];
    };
    this.grid = new Grid({
      label: "requests", many, rows: 16, open: (i) => this.openRequest(i),
      columns: [
        { name: "request", left: true, width: "minmax(150px, 1.4fr)", value: (i) => word(c.r_id[i]), cell: (i) => make("span", { class: "id", title: word(c.r_id[i]) }, word(c.r_id[i])) },
        { name: "arrived", width: "100px", value: (i) => c.r_at[i], cell: (i) => `+${duration(c.r_at[i], 5)}` },
        { name: "wall", width: "90px", value: (i) => c.r_wall[i], cell: (i) => lengthy(c.r_wall[i]) },
        { name: "TTFT", width: "90px", value: (i) => c.r_ttft[i], cell: (i) => known(c.r_ttft[i]) },
        { name: "TPOT", width: "90px", value: (i) => c.r_tpot[i], cell: (i) => known(c.r_tpot[i]) },
        { name: "ITL max", width: "90px", value: (i) => c.r_itl[i], cell: (i) => known(c.r_itl[i]) },
        { name: "in", about: "tokens", width: "60px", value: (i) => c.r_in[i], cell: (i) => count(c.r_in[i]) },
        { name: "out", about: "tokens", width: "60px", value: (i) => c.r_out[i], cell: (i) => count(c.r_out[i]) },
        { name: "status", left: true, width: "130px", value: (i) => word(c.r_status[i]), cell: (i) => word(c.r_status[i]) },
        { name: "path by category", left: true, width: "minmax(120px, 1fr)", cell: mix },
      ],
    });
    this.grid.sort(2, true);
    const field = make("input", { type: "search", id: "find", placeholder: "part of an id or status", "aria-label": "find requests" });
    const found = make("span", { class: "soft", "aria-live": "polite" });
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      this.grid.keep(wanted ? (i) => `${word(c.r_id[i])} ${word(c.r_status[i])}`.toLowerCase().includes(wanted) : null);
      found.textContent = wanted ? `${count(this.grid.order.length)} of ${count(many)}` : "";
    });
    const { with_segments: held } = this.run;
    const note = held < many ? `${count(held)} of ${count(many)} requests, those that took longest, have their segments in this page; of others: gpucorrelate report --request ID --format html.` : "Choose one to see its path.";
    return section("requests", "Requests", note, make("p", { class: "find" }, field, " ", found), this.grid.box);
  }

  openRequest(i) {
    const { r_block: where, r_place: place, r_id: id } = this.columns;
    if (where[i] >= 0) this.open("r", i, [where[i], place[i]]);
    else announce(`the segments of ${word(id[i])} are not in this page`);
  }

  placeOf(kind, i) {
    const c = this.columns;
    const [where, place] = kind === "r" ? [c.r_block, c.r_place] : [c.s_block, c.s_place];
    return where[i] >= 0 ? [where[i], place[i]] : null;
  }
}

const SHOWN = new Set(["model", "vllm.version", "dtype", "executor", "tensor_parallel_size", "max_num_seqs", "hostname", "kernel"]);
