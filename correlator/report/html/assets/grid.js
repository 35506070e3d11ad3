// SPDX-License-Identifier: Apache-2.0
// A list of any length of which only the rows on the screen exist.

const ROW = 26;
// Browsers do not draw taller elements right; a longer list scrolls faster than it is.
const TALLEST = 6_000_000;

class Grid {
  // columns: {name, about, left, width, value(i), cell(i)}; those with a value can be sorted by.
  constructor({ label, columns, many, open, rows = 14 }) {
    Object.assign(this, { columns, many, open, rows });
    this.order = Array.from({ length: many }, (_, i) => i);
    this.all = this.order;
    this.active = 0;
    this.id = `grid${(Grid.made = (Grid.made ?? 0) + 1)}`;
    const sizes = columns.map((column) => column.width).join(" ");
    this.head = make("div", { class: "row head", role: "row", "aria-rowindex": "1", style: { "grid-template-columns": sizes } },
      columns.map((column, at) => make("div", { role: "columnheader", class: column.left ? "" : "right", title: column.about },
        column.value ? make("button", { type: "button", onclick: () => this.sort(at) }, column.name) : column.name)));
    this.sizes = sizes;
    this.spacer = make("div", { class: "spacer", role: "presentation" });
    this.shown = make("div", { class: "shown", role: "rowgroup" });
    this.body = make("div", { class: "body", role: "presentation" }, this.spacer, this.shown);
    this.box = make("div", {
      class: "grid", role: "grid", tabindex: "0", "aria-label": label, "aria-colcount": columns.length,
    }, make("div", { class: "inner", role: "presentation" }, make("div", { role: "rowgroup" }, this.head), this.body));
    this.body.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("focus", () => this.draw());
    this.resize();
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  resize() {
    this.full = this.order.length * ROW;
    this.body.style.setProperty("height", `${Math.min(Math.max(this.order.length, 1), this.rows) * ROW + 2}px`);
    this.tall = Math.min(this.full, TALLEST);
    this.spacer.style.setProperty("height", `${this.tall}px`);
    this.box.setAttribute("aria-rowcount", this.order.length + 1);
  }

  keep(wanted) {
    this.order = wanted ? this.all.filter(wanted) : this.all;
    this.active = 0;
    this.resize();
    this.body.scrollTop = 0;
    this.draw();
  }

  sort(at, descending) {
    const column = this.columns[at];
    this.down = descending ?? (this.sorted === at ? !this.down : !column.left);
    this.sorted = at;
    const sign = this.down ? -1 : 1;
    const by = (a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * sign || a - b;
    };
    this.all = [...this.all].sort(by);
    this.order = [...this.order].sort(by);
    this.head.childNodes.forEach((cell, k) =>
      cell.setAttribute("aria-sort", k !== at ? "none" : this.down ? "descending" : "ascending"));
    this.active = 0;
    this.body.scrollTop = 0;
    this.draw();
  }

  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.paint(); });
  }

  paint() {
    const high = this.body.clientHeight || 14 * ROW;
    const room = Math.max(1, this.tall - high);
    const ratio = Math.max(0, this.full - high) / room;
    const at = this.body.scrollTop * ratio;
    const first = Math.max(0, Math.floor(at / ROW));
    const last = Math.min(this.order.length, first + Math.ceil(high / ROW) + 1);
    this.shown.style.setProperty("transform", `translateY(${this.body.scrollTop - (at - first * ROW)}px)`);
    // The heads stand above the cells also where a scroll bar takes room beside these.
    this.head.style.setProperty("padding-right", `${10 + this.body.offsetWidth - this.body.clientWidth}px`);
    const rows = [];
    for (let k = first; k < last; k += 1) rows.push(this.row(k));
    this.shown.replaceChildren(...rows);
    this.box.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
  }

  row(k) {
    const i = this.order[k];
    return make("div", {
      class: `row${k === this.active ? " active" : ""}`, role: "row", id: `${this.id}-${k}`, "aria-rowindex": k + 2,
      "data-row": i, style: { "grid-template-columns": this.sizes },
      onclick: () => { this.active = k; this.draw(); this.open?.(i); },
    }, this.columns.map((column) => make("div", { role: "gridcell", class: column.left ? "" : "right" }, column.cell(i))));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW) - 1);
    const to = {
      ArrowDown: this.active + 1, ArrowUp: this.active - 1, PageDown: this.active + page,
      PageUp: this.active - page, Home: 0, End: this.order.length - 1,
    }[event.key];
    if (to !== undefined) {
      this.go(to);
      event.preventDefault();
    } else if (event.key === "Enter" && event.target === this.box && this.order.length) {
      this.open?.(this.order[this.active]);
      event.preventDefault();
    }
  }

  go(to) {
    this.active = Math.max(0, Math.min(this.order.length - 1, to));
    const high = this.body.clientHeight;
    const ratio = Math.max(0, this.full - high) / Math.max(1, this.tall - high);
    const top = this.active * ROW;
    const at = this.body.scrollTop * ratio;
    if (ratio && top < at) this.body.scrollTop = top / ratio;
    if (ratio && top + ROW > at + high) this.body.scrollTop = (top + ROW - high) / ratio;
    this.draw();
  }
}
