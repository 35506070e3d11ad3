// SPDX-License-Identifier: Apache-2.0
// One request or step: its verdict, its path over lanes, and each segment in words.

function segmentLines(path, i) {
  const category = CATEGORIES[path.category[i]];
  const actor = LEX.actors[path.actor[i]];
  return [
    make("div", {}, chip(category), make("b", {}, `${category} ${duration(path.length[i])}`), ` at +${duration(path.start[i], 4)}`),
    make("div", {}, actor.shown, word(path.span[i]) ? ` · ${word(path.span[i])}` : "", path.step[i] ? ` · step ${path.step[i] - 1}` : ""),
    causeText(path.cause[i]) ? make("div", {}, causeText(path.cause[i])) : make("div", { class: "soft" }, MEANING[category]),
  ];
}

// A segment as plain values; lengths in nanoseconds from the document's start.
const segmentValues = (path, i) => ({
  start: path.start[i], end: path.start[i + 1], category: CATEGORIES[path.category[i]],
  actor: LEX.actors[path.actor[i]].label, phase: PHASES[path.phase[i]], span: word(path.span[i]),
  step: path.step[i] ? path.step[i] - 1 : null, slack: path.slack[i] ? path.slack[i] - 1 : null,
  cause: causeText(path.cause[i]), evidence: path.evidence ? path.evidence[i] : null,
});

const segmentText = (path, i) =>
  `${CATEGORIES[path.category[i]]} ${duration(path.length[i])}, ${LEX.actors[path.actor[i]].shown}${word(path.span[i]) ? ` in ${word(path.span[i])}` : ""}. ${causeText(path.cause[i]) || MEANING[CATEGORIES[path.category[i]]]}`;

function evidenceRows(path, i) {
  if (!path.evidence) return null;
  let at = 0;
  for (let k = 0; k < i; k += 1) at += path.evidence[k];
  const get = (name) => path.columns[`${path.prefix}evidence_${name}`];
  const rows = [];
  for (let k = at; k < at + path.evidence[i]; k += 1) {
    rows.push([word(get("kind")[k]), `+${duration(get("start")[k], 6).replace(/^\+?-/, "-")}`, lengthy(get("length")[k]),
      get("tid")[k] ? String(get("tid")[k]) : "", make("span", { class: "long", title: word(get("note")[k]) }, word(get("note")[k]))]);
  }
  return rows;
}

// Everything that is known of a segment, with the records that it rests on.
function segmentPanel(path, i, whole) {
  const category = CATEGORIES[path.category[i]];
  const actor = LEX.actors[path.actor[i]];
  const phase = PHASES[path.phase[i]];
  const evidence = evidenceRows(path, i);
  const facts = [
    ["who", `${actor.shown}${actor.role ? ` (${actor.role})` : ""}, thread ${actor.tid || "none"}`],
    ["doing", word(path.span[i]) || "no span of its own"],
    ["why", causeText(path.cause[i]) || "nothing held it up"],
    ["when", `+${duration(path.start[i], 7)} to +${duration(path.start[i + 1], 7)}`],
    ["phase", path.step[i] ? [`${phase}, `, stepLink(path.step[i] - 1)] : phase],
    ["margin", path.slack[i] ? `${duration(path.slack[i] - 1)}: by so much it was the last of what had to happen` : "nothing else came close"],
  ].filter(([label]) => label !== "phase" || phase !== "unknown");
  return make("div", { class: "panel" },
    make("h3", {}, chip(category), `${category} `, lengthy(path.length[i], 4), make("small", {}, ` ${share(path.length[i], whole)} · ${MEANING[category]} · segment ${count(i + 1)} of ${count(path.many)}`)),
    make("dl", { class: "notes" }, facts.map(([label, text]) => make("div", {}, make("dt", {}, label), make("dd", {}, text)))),
    evidence === null ? make("p", { class: "note" }, "The records behind it are in the page of the request alone: gpucorrelate report --request ID --format html.")
      : evidence.length ? table("Records that it rests on", [{ name: "record", left: true }, { name: "begins" }, { name: "lasts" }, { name: "thread" }, { name: "note", left: true }], evidence)
        : make("p", { class: "note" }, "It rests on no record of its own: the path went through the thread that it names."));
}

// A step or request, as a link where the page can open it.
const linked = (place, text) => (place ? make("a", { href: `#${place}` }, text) : text);
const stepLink = (step) => linked(whole?.stepPlace?.(step), `step ${step}`);

function memberLinks(members) {
  const shown = members.slice(0, 12).map((one, at) => [at ? ", " : "", linked(whole?.requestPlace?.(one), word(one))]);
  return ["; requests in it: ", ...shown.flat(), members.length > 12 ? ` and ${members.length - 12} more` : ""];
}

// Rows of the host that are drawn before somebody asks for all.
const FEW = 6;

class PathView {
  constructor(one, { back = null } = {}) {
    this.one = one;
    this.columns = one.columns;
    this.path = pathOf(this.columns);
    this.whole = one.wall_ns;
    this.panel = make("div", { class: "detail", id: "detail" });
    this.said = make("p", { class: "note", id: "chosen", hidden: true });
    this.back = back;
  }

  async element() {
    const { one, path } = this;
    this.series = await loadSeries();
    const engine = one.what !== "profile-step";
    const host = seriesRows(this.series, one.at_ns, this.whole);
    const own = [
      ...(this.columns.phase_name?.length ? [phaseRow(this.columns)] : []),
      ...segmentRows(path, (i) => this.select(i)),
      ...(this.columns.token_out?.length ? [tokenRow(this.columns, one.first_ns)] : []),
      ...streamRows(one),
    ];
    own.at(-1).gap = 14;
    const rows = [...own, ...host.slice(0, FEW)];
    this.chart = new Chart({
      label: `${word(one.id)}: critical path over ${plural(path.lanes.length, "lane")}; the list of segments below holds the same`,
      describe: "keys", length: this.whole, rows, keys: (event) => this.key(event),
    });
    this.chart.over = [wakes(path)];
    this.panel.replaceChildren(make("p", { class: "hint" }, "Point at a segment to read it, choose it to keep it here."));
    const used = one.sums.by_category.map(([name]) => name);
    return make("article", { class: "document", "data-document": word(one.id) },
      this.header(),
      section("time", "Where the time went", "", legend(used), this.chart.box, this.more(own, host), keyHelp(), this.panel),
      ...this.partition(),
      section("actors", "Who held the path", "", holderTable(one, (a, b) => this.showTime(a, b))),
      engine ? section("waits", "Who made it wait", "", waitTable(one, (a, b) => this.showTime(a, b))) : this.gaps(),
      engine ? "" : this.kernels(),
      this.segmentList(),
      section("host", "The host meanwhile", "", one.notes ? noteList(one.notes) : make("p", { class: "note" }, "In words in the page of the request alone."),
        folded("Readings as a table", seriesTable(this.series, one.at_ns, this.whole))),
    );
  }

  // The rest of the host's rows, if there are more.
  more(own, host) {
    if (host.length <= FEW) return "";
    const button = make("button", { type: "button", class: "plain hint", "aria-expanded": "false" });
    const words = (all) => { button.textContent = all ? "fewer rows of the host" : `${plural(host.length - FEW, "more row")} of the host`; };
    button.addEventListener("click", () => {
      const all = button.getAttribute("aria-expanded") === "false";
      button.setAttribute("aria-expanded", String(all));
      words(all);
      this.chart.rows = [...own, ...(all ? host : host.slice(0, FEW))];
      this.chart.draw();
    });
    words(false);
    return make("p", { class: "more" }, button);
  }

  header() {
    const { one } = this;
    return make("header", {},
      this.back ? make("a", { class: "back", href: "#", onclick: (event) => { event.preventDefault(); this.back(); } }, "← back (Escape)") : "",
      make("h1", {}, one.what === "request" ? "request " : "", make("span", { class: "id" }, word(one.id)), " ",
        word(one.status) ? make("span", { class: `badge ${one.style === "green" ? "ok" : one.style.includes("red") ? "wrong" : "odd"}` }, word(one.status)) : "", " ", ...ledgerChip()),
      one.error ? make("p", { class: "bad" }, `THE SEGMENTS DO NOT ADD UP: ${one.error}; please report this`) : "",
      verdictLine(one.verdict, (claim) => this.follow(claim), one.doubtful),
      factList(one.facts),
      make("p", { class: "note" }, `${one.what === "request" ? "arrived" : "began"} ${one.moment} s (${one.what === "profile-step" ? "the profile's clock" : "CLOCK_MONOTONIC"})`,
        one.ids.length ? `; also ${one.ids.map(word).join(", ")}` : "",
        ...(one.members?.length ? memberLinks(one.members) : [])),
      one.unknown ? make("p", { class: "note unknown" }, make("b", {}, "unknown: "), one.unknown) : "");
  }

  // A claim of the verdict, and the segments that it rests on.
  follow(claim) {
    const { path } = this;
    const text = claim.text.replace(/^[,;] /, "");
    const by = (wanted) => ({ about: "show the segments that this rests on", go: () => this.mark(wanted, text) });
    if (claim.claim) return by((i) => this.columns.claim[i] === claim.claim);
    if (claim.category) return by((i) => CATEGORIES[path.category[i]] === claim.category);
    if (claim.actor !== undefined) return by((i) => LEX.actors[path.actor[i]].label === word(claim.actor));
    if (claim.from_ns !== undefined) {
      return { about: "show it", go: () => {
        this.mark((i) => path.start[i] < claim.to_ns && path.start[i + 1] > claim.from_ns, text);
        this.showTime(claim.from_ns, claim.to_ns);
      } };
    }
    return null;
  }

  mark(wanted, text) {
    const { path } = this;
    path.marked = wanted;
    let [many, sum] = [0, 0];
    for (let i = 0; wanted && i < path.many; i += 1) if (wanted(i)) { many += 1; sum += path.length[i]; }
    this.said.hidden = !wanted;
    const words = `${plural(many, "segment")}, ${duration(sum)}, for “${text}”. `;
    if (wanted) this.said.replaceChildren(words, make("button", { type: "button", onclick: () => this.mark(null) }, "show all (Escape)"));
    this.grid?.keep(wanted);
    this.chart.draw();
    announce(wanted ? words : "all segments");
    if (wanted) this.chart.box.scrollIntoView({ block: "nearest" });
  }

  showTime(from, to) {
    const margin = Math.max((to - from) * 0.6, 1000);
    this.chart.zoom(from - margin, to + margin);
    const { path } = this;
    let best = -1;
    for (let i = Math.max(0, lastAtMost(path.start, from, path.many)); i < path.many && path.start[i] < to; i += 1) {
      if (best < 0 || path.length[i] > path.length[best]) best = i;
    }
    if (best >= 0) this.select(best);
    this.chart.box.scrollIntoView({ block: "center" });
    this.chart.box.focus({ preventScroll: true });
  }

  select(i) {
    const { path } = this;
    path.selected = i;
    if (i < 0) { this.panel.replaceChildren(); this.chart.draw(); return; }
    this.panel.replaceChildren(segmentPanel(path, i, this.whole));
    this.chart.show(path.start[i], path.start[i + 1]);
    announce(segmentText(path, i));
  }

  key(event) {
    const { path } = this;
    const next = (step) => {
      let i = path.selected < 0 ? (step > 0 ? Math.max(-1, lastAtMost(path.start, this.chart.view.from, path.many) - 1) : path.many) : path.selected;
      do i += step; while (i >= 0 && i < path.many && path.marked && !path.marked(i));
      if (i >= 0 && i < path.many) this.select(i);
    };
    if (event.key === "ArrowRight") next(1);
    else if (event.key === "ArrowLeft") next(-1);
    else if (event.key === "Home") this.select(0);
    else if (event.key === "End") this.select(path.many - 1);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.sameLane(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" && path.selected >= 0) this.showTime(path.start[path.selected], path.start[path.selected + 1]);
    else if (event.key === "Escape") return this.escape(event);
    else return false;
    return true;
  }

  // The next or last segment of the same actor that is the longest of the next few.
  sameLane(step) {
    const { path } = this;
    if (path.selected < 0) { this.select(0); return; }
    for (let i = path.selected + step; i >= 0 && i < path.many; i += step) {
      if (path.actor[i] === path.actor[path.selected]) { this.select(i); return; }
    }
  }

  // Undoes what was done last: the choice, the marks, the zoom; then it is somebody else's key.
  escape(event) {
    const { view, length } = this.chart;
    if (this.path.selected >= 0) this.select(-1);
    else if (this.path.marked) this.mark(null);
    else if (view.from > 0 || view.to < length) this.chart.zoom(0, length);
    else return false;
    event?.stopPropagation();
    return true;
  }

  partition() {
    const { one, path } = this;
    const pick = (name) => this.mark((i) => CATEGORIES[path.category[i]] === name, name);
    const pickPhase = (name) => this.mark((i) => PHASES[path.phase[i]] === name, name);
    const pair = (sums, what, on) => make("div", { class: "two" },
      sums.by_phase.length && sums.by_phase[0][0] !== "unknown" ? bars(`${what} by phase`, sums.by_phase, sums.length_ns, { phases: true, pick: on ? pickPhase : null }) : "",
      bars(`${what} by category`, sums.by_category, sums.length_ns, { pick: on ? pick : null }));
    const parts = [section("shares", one.sums.by_phase.length ? "By phase and category" : "By category", "", pair(one.sums, `${duration(one.sums.length_ns, 4)}, arrival to end,`.replace("arrival to end", one.what === "request" ? "arrival to end" : "start to end"), true))];
    if (one.before_first) {
      parts.push(section("first", "To the first token, and after it",
        "Steps in decode before the first token are those that ran while it was on its way out.",
        pair(one.before_first, `${duration(one.before_first.length_ns, 4)} to the first token`, false),
        pair(one.after_first, `${duration(one.after_first.length_ns, 4)} after it`, false)));
    }
    if (one.parts?.length) {
      parts.push(section("gpu", "What the GPU did meanwhile", "", make("div", { class: "two" },
        namedBars("The step's wall time by what the GPU did", "the GPU", one.parts, one.wall_ns),
        namedBars("Operations by class; overlap counts each time", "class", one.classes, one.classes.reduce((sum, [, ns]) => sum + ns, 0), "count"))));
    }
    return parts;
  }

  gaps() {
    const rows = this.one.gaps.map((gap) => [
      make("button", { type: "button", class: "plain", title: "show it", onclick: () => this.showTime(gap.at_ns, gap.at_ns + gap.length_ns) }, duration(gap.length_ns)),
      `+${duration(gap.at_ns, 4)}`, word(gap.stream), word(gap.before), word(gap.after),
      gap.doing.map(([what, ns]) => `${what} ${duration(ns)}`).join(", ")]);
    return section("gaps", "When the GPU was idle", "The longest stretches in which none of the step's operations ran though later ones were to come.",
      rows.length ? table("Idle gaps", [{ name: "length" }, { name: "at" }, { name: "stream", left: true }, { name: "after", left: true }, { name: "before", left: true }, { name: "who held the path", left: true }], rows) : make("p", {}, "It was not."));
  }

  kernels() {
    const { kernels, classes } = this.one;
    const whole = classes.reduce((sum, [, ns]) => sum + ns, 0);
    return section("kernels", "Longest operations", "", namedBars("GPU work by name", "operation", kernels, whole, "times"));
  }

  segmentList() {
    const { path } = this;
    const name = (i) => CATEGORIES[path.category[i]];
    this.grid = new Grid({
      label: "segments of the critical path", many: path.many, rows: 12,
      open: (i) => { this.select(i); this.panel.scrollIntoView({ block: "nearest" }); },
      columns: [
        { name: "begins", width: "110px", value: (i) => path.start[i], cell: (i) => `+${duration(path.start[i], 5)}` },
        { name: "lasts", width: "90px", value: (i) => path.length[i], cell: (i) => lengthy(path.length[i]) },
        { name: "category", left: true, width: "120px", value: name, cell: (i) => [chip(name(i)), name(i)] },
        { name: "actor", left: true, width: "minmax(140px, 1.2fr)", value: (i) => LEX.actors[path.actor[i]].label, cell: (i) => LEX.actors[path.actor[i]].label },
        { name: "doing", left: true, width: "minmax(80px, 1fr)", value: (i) => word(path.span[i]), cell: (i) => word(path.span[i]) },
        { name: "step", width: "60px", value: (i) => path.step[i], cell: (i) => (path.step[i] ? String(path.step[i] - 1) : "") },
        { name: "why", left: true, width: "minmax(160px, 2fr)", value: (i) => causeText(path.cause[i]), cell: (i) => causeText(path.cause[i]) },
      ],
    });
    return section("segments", "Segments", "They follow each other without a gap and sum to the wall time exactly.", this.said, this.grid.box);
  }
}

function keyHelp() {
  const keys = make("p", { class: "hint", id: "keys" },
    "Keys on the picture: ← → segment by segment, ↑ ↓ the same actor's, Enter zooms to it, + − zoom, [ ] move, 0 all, Escape back. Drag to zoom; Ctrl and wheel too. Arrows between lanes: who let whom go on; zoom in until they are drawn.");
  return keys;
}
