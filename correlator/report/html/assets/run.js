// SPDX-License-Identifier: Apache-2.0
// A whole recording: sums over time, steps, spread, requests; each request opens on demand.

class RunView {
  constructor(open) {
    this.open = open;
    this.run = HEAD.run;
  }

  async element() {
    const { run } = this;
    const [{ columns }] = await block(run.block[0]);
    this.columns = columns;
    this.mixed = Math.max(0, CATEGORIES.indexOf(run.sums.by_category[0]?.[0]));
    const series = await loadSeries();
    const bins = binRow(run, columns, (from, to) => this.inFlight(from, to));
    this.chart = new Chart({
      label: "the recording over time: requests in flight by category, steps, and the host; the tables below hold the same",
      describe: "keys", length: HEAD.length_ns, keys: (event) => this.key(event),
      rows: [...(run.requests ? [bins] : []), ...stepRows(columns, (i) => this.openStep(i)), ...seriesRows(series, 0, HEAD.length_ns)],
    });
    const { by_category: categories, by_phase: phases, length_ns: whole } = run.sums;
    return make("article", { class: "document", "data-document": "run" },
      make("header", {},
        make("h1", {}, HEAD.title, " ", ...ledgerChip()),
        verdictLine(HEAD.claims, (claim) => this.follow(claim), !HEAD.ledger.clean),
        factList(HEAD.facts),
        make("p", { class: "note" }, run.meta.filter(([name]) => SHOWN.has(name)).map(([name, value]) => `${name} ${value}`).join(" · "))),
      section("time", "Over time", `Time counts from ${HEAD.origin} s (CLOCK_MONOTONIC).`, legend(categories.map(([name]) => name)),
        make("ul", { class: "legend" }, make("li", {}, chip("tokens-prefill"), "prefill tokens"), make("li", {}, chip("tokens-decode"), "decode tokens")),
        this.chart.box, make("p", { class: "hint", id: "keys" }, "Keys on the picture: ← → move the mark, Enter opens the step there, + − zoom, [ ] move, 0 all. Drag to zoom."),
        run.requests ? folded("As a table", bins.table(), seriesTable(series, 0, HEAD.length_ns)) : ""),
      run.requests ? section("shares", "Where the requests' time went", `${duration(whole, 4)} of all requests from arrival to last byte, and shares of it.`,
        make("div", { class: "two" }, bars("By category", categories, whole, { pick: (name) => this.sortBy(name), about: "requests with most of it first" }), bars("By phase", phases, whole, { phases: true }))) : "",
      run.requests ? section("actors", "Who held the path", "", namedBars("Path time of all requests by actor", "actor",
        [...run.actors.map(([name, ns]) => [word(name), ns]), ...(run.more_actors[0] ? [[plural(run.more_actors[0], "more actor"), run.more_actors[1]]] : [])], whole)) : "",
      run.requests ? spreadSection(run.spread, (name, band, over) => this.band(name, band, over)) : "",
      this.steps(),
      this.requests(),
      section("host", "The host meanwhile", "", noteList(run.notes)),
      folded("All that is known of the engine", table("The engine", [{ name: "what", left: true }, { name: "value", left: true }], run.meta)));
  }

  follow(claim) {
    if (claim.category) return { href: "#shares" };
    return claim.to ? { href: `#${claim.to}` } : null;
  }

  // Of the list of requests only some, with words that say which.
  only(wanted, text) {
    this.grid.keep(wanted);
    this.said.hidden = !wanted;
    if (!wanted) { announce("all requests"); return; }
    const words = `${plural(this.grid.order.length, "request")} ${text}. `;
    this.said.replaceChildren(words, make("button", { type: "button", onclick: () => this.only(null) }, "show all (Escape)"));
    this.toRequests(words);
  }

  toRequests(words) {
    announce(words);
    document.getElementById("requests").scrollIntoView();
    this.grid.box.focus({ preventScroll: true });
  }

  escape() {
    if (!this.said || this.said.hidden) return false;
    this.only(null);
    return true;
  }

  inFlight(from, to) {
    const { r_at: at, r_wall: wall } = this.columns;
    this.only((i) => at[i] < to && at[i] + wall[i] > from, `in flight from +${duration(from, 4)} to +${duration(to, 4)}`);
  }

  band(name, band, over) {
    const [values, what] = {
      TTFT: [this.columns.r_ttft, "whose TTFT is"], TPOT: [this.columns.r_tpot, "whose TPOT is"],
      ITL: [this.columns.r_itl, "whose longest gap is, of all gaps,"],
    }[name];
    this.only((i) => values[i] >= 0 && values[i] > over && values[i] <= band.high_ns,
      `${what} in ${band.name}: ${over < 0 ? "" : `beyond ${duration(over, 4)}, `}up to ${duration(band.high_ns, 4)}`);
  }

  sortBy(category) {
    this.mixed = CATEGORIES.indexOf(category);
    const at = this.grid.columns.length - 1;
    this.grid.head.childNodes[at].firstChild.textContent = `path by category: ${category}`;
    this.grid.sort(at, true);
    this.toRequests(`requests with most ${category} first`);
  }

  key(event) {
    const chart = this.chart;
    const step = (chart.view.to - chart.view.from) / 60;
    const move = (t) => {
      chart.cursor = Math.min(Math.max(t, 0), chart.length);
      chart.show(chart.cursor, chart.cursor);
      const lines = chart.rows.slice(0, 2).map((row) => row.at?.(chart.cursor, 0, chart)?.lines).filter(Boolean);
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
        { name: `path by category: ${CATEGORIES[this.mixed]}`, about: "sorted by the time of this one", left: true, width: "minmax(200px, 1fr)", value: (i) => c.r_category[i * width + this.mixed], cell: mix },
      ],
    });
    this.grid.sort(2, true);
    this.said = make("p", { class: "note", id: "chosen", hidden: true });
    const field = make("input", { type: "search", id: "find", placeholder: "part of an id or status", "aria-label": "find requests" });
    const found = make("span", { class: "soft", "aria-live": "polite" });
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      this.said.hidden = true;
      this.grid.keep(wanted ? (i) => `${word(c.r_id[i])} ${word(c.r_status[i])}`.toLowerCase().includes(wanted) : null);
      found.textContent = wanted ? `${count(this.grid.order.length)} of ${count(many)}` : "";
    });
    const { with_segments: held } = this.run;
    const note = held < many ? `${count(held)} of ${count(many)} requests, those that took longest, have their segments in this page; of others: gpucorrelate report --request ID --format html.` : "Choose one to see its path.";
    return section("requests", "Requests", note, make("p", { class: "find" }, field, " ", found), this.said, this.grid.box);
  }

  openRequest(i) {
    const { r_block: where, r_place: place, r_id: id } = this.columns;
    if (where[i] >= 0) this.open("r", i, [where[i], place[i]]);
    else announce(`the segments of ${word(id[i])} are not in this page`);
  }

  // Where a step or request is, for a link to it; nothing where the page has none or several.
  stepPlace(step) {
    const { s_step: all, s_block: where } = this.columns;
    const i = all.indexOf(step);
    return i >= 0 && i === all.lastIndexOf(step) && where[i] >= 0 ? `s=${i}` : null;
  }

  requestPlace(id) {
    const { r_id: all, r_block: where } = this.columns;
    const i = all.indexOf(id);
    return i >= 0 && where[i] >= 0 ? `r=${i}` : null;
  }

  placeOf(kind, i) {
    const c = this.columns;
    const [where, place] = kind === "r" ? [c.r_block, c.r_place] : [c.s_block, c.s_place];
    return where[i] >= 0 ? [where[i], place[i]] : null;
  }
}

const SHOWN = new Set(["model", "vllm.version", "dtype", "executor", "tensor_parallel_size", "max_num_seqs", "hostname", "kernel"]);
