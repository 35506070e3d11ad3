// SPDX-License-Identifier: Apache-2.0
// Rows over one time axis on a canvas: zoomed by dragging, read by pointer or by keys.

const AXIS = 22;
const FONT = "11px ui-sans-serif, system-ui, sans-serif";

class Chart {
  // rows: {label, height, draw(pen, area, view), at(t, y, area, view)}; `at` says what is there:
  // {lines, select} or nothing. keys(event, chart) is asked before the chart's own keys.
  constructor({ label, length, rows, describe, keys, onSelect, unit }) {
    this.length = Math.max(1, length);
    this.rows = rows;
    this.keys = keys;
    this.onSelect = onSelect;
    this.unit = unit || "";
    this.view = { from: 0, to: this.length };
    this.cursor = null;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.brush = make("div", { class: "brush", hidden: true });
    this.box = make("div", {
      class: "chart", tabindex: "0", role: "application", "aria-roledescription": "timeline",
      "aria-label": label, "aria-describedby": describe,
    }, this.canvas, this.brush);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("pointermove", (event) => this.move(event));
    this.box.addEventListener("pointerleave", () => { hideTip(); this.cursor = null; this.draw(); });
    this.box.addEventListener("pointerdown", (event) => this.press(event));
    this.box.addEventListener("pointerup", (event) => this.release(event));
    this.box.addEventListener("dblclick", () => this.zoom(0, this.length));
    this.box.addEventListener("blur", hideTip);
    this.box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.draw()).observe(this.box);
    charts.add(new WeakRef(this));
  }

  get height() { return AXIS + this.rows.reduce((sum, row) => sum + row.height + (row.gap ?? 4), 0) + 4; }

  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.paint(); });
  }

  paint() {
    const width = this.box.clientWidth;
    if (!width || !this.box.isConnected) return;
    const ratio = devicePixelRatio || 1;
    const height = this.height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.setProperty("height", `${height}px`);
    this.gutter = width < 600 ? 92 : 190;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = FONT;
    pen.textBaseline = "middle";
    const area = { left: this.gutter, width: Math.max(40, width - this.gutter - 8), top: 0 };
    this.area = area;
    this.axis(pen, area, height);
    let top = AXIS;
    for (const row of this.rows) {
      row.top = top;
      const own = { ...area, top, height: row.height };
      pen.fillStyle = row.strong ? colours["@ink"] : colours["@soft"];
      pen.textAlign = "right";
      const lines = row.label instanceof Array ? row.label : [row.label];
      lines.forEach((line, at) => {
        const y = top + row.height / 2 + (at - (lines.length - 1) / 2) * 13;
        if (at) pen.fillStyle = colours["@faint"];
        pen.fillText(clipped(pen, line, this.gutter - 12), this.gutter - 8, y);
      });
      pen.save();
      pen.beginPath();
      pen.rect(area.left, top - 1, area.width, row.height + 2);
      pen.clip();
      row.draw(pen, own, this.view, this);
      pen.restore();
      top += row.height + (row.gap ?? 4);
    }
    for (const layer of this.over ?? []) layer(pen, area, this.view, this);
    if (this.cursor !== null) {
      const x = this.x(this.cursor);
      pen.strokeStyle = colours["@ink"];
      pen.globalAlpha = 0.5;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(Math.round(x) + 0.5, AXIS);
      pen.lineTo(Math.round(x) + 0.5, height);
      pen.stroke();
      pen.globalAlpha = 1;
    }
  }

  axis(pen, area, height) {
    const { from, to } = this.view;
    const step = niceStep((to - from) / Math.max(2, Math.floor(area.width / 110)));
    const scale = scaleOf(Math.max(step * 10, to), 4);
    const finer = { ...scale, decimals: Math.max(0, Math.min(9, Math.ceil(Math.log10(scale.unitNs / step) - 1e-9))) };
    pen.strokeStyle = colours["@line"];
    pen.fillStyle = colours["@soft"];
    pen.textAlign = "left";
    pen.lineWidth = 1;
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 14);
      pen.lineTo(x, height);
      pen.stroke();
      const text = `${numberIn(finer, Math.round(t))} ${scale.unit}`;
      if (x + 3 + pen.measureText(text).width < area.left + area.width + 6) pen.fillText(text, x + 3, 9);
    }
  }

  x(t) {
    return this.area.left + ((t - this.view.from) / (this.view.to - this.view.from)) * this.area.width;
  }

  t(x) {
    const { from, to } = this.view;
    return from + ((x - this.area.left) / this.area.width) * (to - from);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    const row = this.rows.find((one) => y >= one.top - 2 && y < one.top + one.height + 2);
    return { x, y, row, inside: this.area && x >= this.area.left && x <= this.area.left + this.area.width };
  }

  move(event) {
    const { x, y, row, inside } = this.point(event);
    if (this.pressed !== undefined && Math.abs(x - this.pressed) > 4) {
      const [low, high] = [x, this.pressed].sort((a, b) => a - b);
      this.brush.hidden = false;
      this.brush.style.setProperty("left", `${Math.max(low, this.area.left)}px`);
      this.brush.style.setProperty("width", `${high - Math.max(low, this.area.left)}px`);
    }
    if (!inside) { hideTip(); this.cursor = null; this.draw(); return; }
    this.cursor = this.t(x);
    this.draw();
    const found = row?.at?.(this.cursor, y - row.top, this);
    if (found) showTip(event.clientX, event.clientY, found.lines);
    else hideTip();
  }

  press(event) {
    const { x, inside } = this.point(event);
    if (event.button === 0 && inside && event.pointerType === "mouse") this.pressed = x;
    else this.touched = true;
  }

  release(event) {
    const { x, y, row, inside } = this.point(event);
    const begun = this.pressed;
    this.pressed = undefined;
    this.brush.hidden = true;
    if (begun !== undefined && Math.abs(x - begun) > 4) {
      const [low, high] = [this.t(x), this.t(begun)].sort((a, b) => a - b);
      this.zoom(low, high);
    } else if (inside) {
      const found = row?.at?.(this.t(x), y - row.top, this);
      if (found?.select) found.select();
    }
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { x } = this.point(event);
    this.around(this.t(x), event.deltaY > 0 ? 1.25 : 0.8);
  }

  around(t, factor) {
    const { from, to } = this.view;
    this.zoom(t - (t - from) * factor, t + (to - t) * factor);
  }

  zoom(from, to) {
    const least = Math.min(20, this.length);
    const length = Math.min(Math.max(to - from, least), this.length);
    const begin = Math.min(Math.max(0, from), this.length - length);
    this.view = { from: begin, to: begin + length };
    this.draw();
  }

  show(from, to) {
    if (from >= this.view.from && to <= this.view.to) { this.draw(); return; }
    const margin = (this.view.to - this.view.from) / 2;
    this.zoom((from + to) / 2 - margin, (from + to) / 2 + margin);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (this.keys?.(event, this)) { event.preventDefault(); return; }
    const span = this.view.to - this.view.from;
    const middle = (this.view.from + this.view.to) / 2;
    const act = {
      "+": () => this.around(middle, 0.5), "=": () => this.around(middle, 0.5),
      "-": () => this.around(middle, 2), 0: () => this.zoom(0, this.length),
      "[": () => this.zoom(this.view.from - span / 4, this.view.to - span / 4),
      "]": () => this.zoom(this.view.from + span / 4, this.view.to + span / 4),
    }[event.key];
    if (act) { act(); event.preventDefault(); }
  }
}

const charts = new Set();
function redraw(atOnce) {
  readColours();
  for (const ref of charts) {
    const chart = ref.deref();
    if (chart && atOnce === true) chart.paint();
    else if (chart) chart.draw();
    else charts.delete(ref);
  }
}

function niceStep(raw) {
  const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
  return Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw));
}

function clipped(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
