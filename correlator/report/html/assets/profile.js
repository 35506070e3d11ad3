// SPDX-License-Identifier: Apache-2.0
// A whole GPU profile: devices, steps, what they ran; each step opens on demand.

class ProfileView {
  constructor(open) {
    this.open = open;
    this.profile = HEAD.profile;
  }

  async element() {
    const { profile } = this;
    const [{ columns }] = await block(profile.block[0]);
    this.columns = columns;
    const { by_category: categories, length_ns: whole } = profile.sums;
    const work = profile.classes.reduce((sum, [, ns]) => sum + ns, 0);
    const devices = profile.devices.map(([who, device, ops, busy, sum, span]) => [`${who} GPU ${device}`, count(ops), lengthy(busy), share(busy, span), lengthy(sum), lengthy(span)]);
    return make("article", { class: "document", "data-document": "profile" },
      make("header", {},
        make("h1", {}, HEAD.title, " ", ...ledgerChip()),
        verdictLine(HEAD.claims, (claim) => (claim.category ? { href: "#shares" } : claim.to ? { href: `#${claim.to}` } : null), !HEAD.ledger.clean),
        factList(HEAD.facts),
        make("p", { class: "note" }, profile.sources.join(" · "))),
      this.steps(),
      section("shares", "Critical path of the steps, and what the GPU ran", `${duration(whole, 4)} of path, steps summed; ${duration(work, 4)} of records, overlap counted each time.`,
        make("div", { class: "two" }, bars("Path by category", categories, whole),
          namedBars("GPU work by class", "class", profile.classes, work, "count"))),
      profile.skew?.ranks.length ? this.ranks() : "",
      section("kernels", "Longest operations", "", namedBars("GPU work by name", "operation", profile.kernels, work, "times")),
      section("devices", "Devices", "Busy: overlap counted once. Span: first record to last.",
        table("Devices", [{ name: "device", left: true }, { name: "records" }, { name: "busy" }, { name: "of span" }, { name: "sum" }, { name: "span" }], devices)),
      section("host", "In words", "", noteList(profile.notes)));
  }

  ranks() {
    const { skew } = this.profile;
    const rows = skew.ranks.map(([who, length, waited, last, heldUp]) => [who, lengthy(length), lengthy(waited), count(last), lengthy(heldUp)]);
    return section("ranks", "Who came late to what all do together", `${plural(skew.collectives, "collective")} compared.`,
      table("Processes in collectives", [{ name: "process", left: true }, { name: "in collectives" }, { name: "waited at least" }, { name: "began last" }, { name: "held up others" }], rows));
  }

  steps() {
    const c = this.columns;
    const width = CATEGORIES.length;
    const mix = (i) => {
      const pairs = [];
      for (let k = 0; k < width; k += 1) if (c.p_category[i * width + k]) pairs.push([CATEGORIES[k], c.p_category[i * width + k]]);
      pairs.sort((a, b) => b[1] - a[1]);
      return [stack(pairs, c.p_wall[i], pairs.map(([name, ns]) => `${name} ${share(ns, c.p_wall[i])}`).join(", "))];
    };
    this.grid = new Grid({
      label: "steps of the profile", many: c.p_at.length, rows: 14, open: (i) => this.openStep(i),
      columns: [
        { name: "step", width: "70px", value: (i) => c.p_step[i], cell: (i) => String(c.p_step[i]) },
        { name: "process", left: true, width: "minmax(110px, 0.6fr)", value: (i) => word(c.p_process[i]), cell: (i) => word(c.p_process[i]) },
        { name: "began", width: "100px", value: (i) => c.p_at[i], cell: (i) => `+${duration(c.p_at[i], 5)}` },
        { name: "wall", width: "90px", value: (i) => c.p_wall[i], cell: (i) => lengthy(c.p_wall[i]) },
        { name: "GPU busy", width: "90px", value: (i) => c.p_busy[i], cell: (i) => lengthy(c.p_busy[i]) },
        { name: "", width: "60px", cell: (i) => share(c.p_busy[i], c.p_wall[i]) },
        { name: "records", width: "80px", value: (i) => c.p_ops[i], cell: (i) => count(c.p_ops[i]) },
        { name: "launches", width: "80px", value: (i) => c.p_launches[i], cell: (i) => count(c.p_launches[i]) },
        { name: "path by category", left: true, width: "minmax(140px, 1fr)", cell: mix },
        { name: "name", left: true, width: "minmax(120px, 1fr)", value: (i) => word(c.p_name[i]), cell: (i) => word(c.p_name[i]) },
      ],
    });
    if (c.p_at.length > 1) this.grid.sort(3, true);
    const used = this.profile.sums.by_category.map(([name]) => name);
    const held = this.profile.with_segments;
    const note = held < c.p_at.length ? `${count(held)} of ${count(c.p_at.length)} steps, the longest, have their segments in this page.` : "Choose one to see its path.";
    return section("steps", "Steps", note, legend(used), this.grid.box);
  }

  openStep(i) {
    const place = this.placeOf("p", i);
    if (place) this.open("p", i, place);
    else announce(`the segments of step ${this.columns.p_step[i]} are not in this page`);
  }

  placeOf(kind, i) {
    const c = this.columns;
    return c.p_block[i] >= 0 ? [c.p_block[i], c.p_place[i]] : null;
  }
}
