// SPDX-License-Identifier: Apache-2.0
// Parts that several views have: figures, verdicts, bars, who held the path, waits, the ledger.

function factList(facts) {
  return make("dl", { class: "facts" }, facts.map((one) => make("div", {},
    make("dt", {}, one.label),
    make("dd", {}, numeric(one.text, one.value, { "data-fact": one.label }),
      one.about ? make("small", {}, one.about) : ""))));
}

// Each claim that rests on something leads to it.
function verdictLine(claims, follow, doubtful) {
  return make("p", { class: `verdict${doubtful ? " doubtful" : ""}` }, claims.map((one) => {
    const act = follow(one);
    return act ? make("a", { href: act.href ?? "#", onclick: act.go && ((event) => { event.preventDefault(); act.go(); }), title: act.about }, one.text) : one.text;
  }));
}

function bars(caption, pairs, whole, { phases = false, pick = null, names = MEANING, about = "" } = {}) {
  const rows = pairs.map(([name, ns]) => [
    make("span", { class: "name" }, chip(name, phases),
      pick ? make("button", { type: "button", class: "plain", title: about || `show where: ${names[name] ?? ""}`, onclick: () => pick(name) }, name) : name),
    lengthy(ns, 4), share(ns, whole),
    make("span", { class: "bar" }, make("i", { class: `k-${phases ? "phase-" : ""}${name}`, style: { width: `${whole > 0 ? (100 * ns) / whole : 0}%` } })),
    make("span", { class: "meaning" }, names[name] ?? ""),
  ]);
  const columns = [{ name: phases ? "phase" : "category", left: true }, { name: "time" }, { name: "share" },
    { name: "", left: true }, { name: "meaning", left: true }];
  return table(caption, columns, rows, { class: "bars" });
}

function namedBars(caption, what, rows, whole, counted) {
  const columns = [{ name: what, left: true }, { name: "time" }, { name: "share" }, ...(counted ? [{ name: counted }] : []), { name: "", left: true }];
  return table(caption, columns, rows.map(([name, ns, many]) => [
    make("span", { class: "long", title: name }, name), lengthy(ns), share(ns, whole), ...(counted ? [count(many)] : []),
    make("span", { class: "bar" }, make("i", { class: "k-neutral", style: { width: `${whole > 0 ? (100 * ns) / whole : 0}%` } }))]), { class: "bars named" });
}

function holderTable(document_, go) {
  const whole = document_.sums.length_ns;
  const rows = document_.holders.map((one) => [
    word(one.label), lengthy(one.length_ns), share(one.length_ns, whole),
    stack(one.parts.map(([category, , ns]) => [CATEGORIES[category], ns]), one.length_ns, ""),
    one.parts.map(([category, span, ns], at) => [at ? ", " : "", `${CATEGORIES[category]}${word(span) ? ` ${word(span)}` : ""} ${duration(ns)}`]).flat().join(""),
    one.longest ? make("button", { type: "button", class: "plain", title: "show it", onclick: () => go(one.longest[0], one.longest[0] + one.longest[1]) }, duration(one.longest[1])) : "",
  ]);
  return table("Who held the path", [{ name: "actor", left: true }, { name: "time" }, { name: "share" },
    { name: "", left: true }, { name: "with what", left: true }, { name: "longest stretch" }], rows, { class: "many holders" });
}

function waitTable(document_, go) {
  const { rows, groups } = document_.waits;
  if (!rows.length) return make("p", { class: "note" }, "No wait lies on the path.");
  const columns = [{ name: "longest" }, { name: "waited in", left: true }, { name: "who waited", left: true },
    { name: "who or what ended it", left: true }, { name: "phase", left: true }, { name: "waits" }, { name: "together" }];
  const cells = rows.map((one) => [
    make("button", { type: "button", class: "plain", title: "show it", onclick: () => go(one.start_ns, one.start_ns + one.longest_ns) }, duration(one.longest_ns)),
    word(one.kind), LEX.actors[one.waiter].label, causeText(one.cause), PHASES[one.phase], count(one.count), lengthy(one.length_ns)]);
  const more = groups > rows.length ? make("p", { class: "note" }, `${plural(groups - rows.length, "more cause")} with shorter waits.`) : "";
  return make("div", {}, table("Waits on the path, by cause", columns, cells), more);
}

const causeText = (cause) => (cause ? LEX.causes[cause - 1][0] : "");

function noteList(notes) {
  return make("dl", { class: "notes" }, notes.map(([label, text]) => {
    const bad = /^[A-Z ./]{8,}$/.test(label);
    return make("div", { class: bad ? "bad" : "" }, make("dt", {}, label), make("dd", {}, text));
  }));
}

function ledgerSection() {
  const { lines, missing, clean } = HEAD.ledger;
  const bad = lines.filter((line) => line[3]);
  const checks = lines.filter((line) => line[4]).length;
  const words = !lines.length ? "Empty: nothing says what this rests on."
    : clean ? `Nothing lost, nothing mismatched (${plural(checks, "check")}).`
      : `${plural(bad.length, "check")} of ${checks} failed: ${bad.map(([name, many]) => `${name} ${count(many)}`).join("; ")}.`;
  const rows = lines.map(([name, many, note, wrong, check]) => [name, numeric(count(many), many), wrong ? "LOST OR WRONG" : check ? "check passed" : "", note]);
  return section("ledger", "What this rests on", "", make("p", { class: clean && lines.length ? "good" : "bad" }, words),
    missing.length ? make("div", { id: "uncovered" }, make("h3", {}, "Not covered"), make("ul", {}, missing.map((one) => make("li", {}, one)))) : make("p", {}, "No source was missing."),
    folded("All counts", table("The ledger", [{ name: "what", left: true }, { name: "count" }, { name: "", left: true }, { name: "note", left: true }], rows)));
}

function legend(names, { phases = false } = {}) {
  return make("ul", { class: "legend", "aria-label": "colours" }, names.map((name) =>
    make("li", { title: MEANING[name] }, chip(name, phases), name)));
}

function ledgerChip() {
  const { clean, lines, missing } = HEAD.ledger;
  const bad = lines.filter((line) => line[3]).length;
  const good = clean && lines.length;
  return [
    make("a", { class: `badge ${good ? "ok" : "wrong"}`, href: "#ledger" },
      good ? "ledger: nothing lost" : `ledger: ${lines.length ? `${plural(bad, "check")} failed` : "empty"}`), " ",
    missing.length ? make("a", { class: "badge odd", href: "#uncovered", title: missing.join("; ") }, `not covered: ${plural(missing.length, "source")}`) : "",
  ];
}
