// SPDX-License-Identifier: Apache-2.0
// Rows of a chart: segments, lanes, phases, tokens.

const LEAST_PX = 1;

// A path ready to be drawn: starts, lanes, and who is in them.
function pathOf(columns, prefix = "") {
  const get = (name) => columns[prefix + name];
  const length = get("length");
  const many = length.length;
  const actor = get("actor");
  const held = new Map();
  for (let i = 0; i < many; i += 1) held.set(actor[i], (held.get(actor[i]) ?? 0) + length[i]);
  const order = [...held.entries()].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  // Whoever held the path for less than half a per cent of it shares a lane with the like.
  const sum = order.reduce((a, [, ns]) => a + ns, 0);
  const large = order.filter(([, ns], at) => at < 2 || ns * 200 >= sum).length;
  const shown = order.length - large > 1 || order.length > 11 ? order.slice(0, Math.min(10, large)) : order;
  const lanes = shown.map(([who]) => ({ who: [who], held: held.get(who), label: LEX.actors[who].label }));
  if (shown.length < order.length) {
    const rest = order.slice(shown.length);
    lanes.push({
      who: rest.map(([who]) => who), held: rest.reduce((sum, [, ns]) => sum + ns, 0),
      label: plural(rest.length, "more actor"),
    });
  }
  const laneOf = new Uint8Array(LEX.actors.length);
  lanes.forEach(({ who }, lane) => who.forEach((one) => { laneOf[one] = lane; }));
  const index = lanes.map(() => 0);
  for (let i = 0; i < many; i += 1) index[laneOf[actor[i]]] += 1;
  index.forEach((size, lane) => { index[lane] = new Uint32Array(size); });
  const filled = lanes.map(() => 0);
  for (let i = 0; i < many; i += 1) {
    const lane = laneOf[actor[i]];
    index[lane][filled[lane]] = i;
    filled[lane] += 1;
  }
  return {
    many, index, start: startsOf(length), length, actor, category: get("category"), phase: get("phase"),
    span: get("span"), step: get("step"), cause: get("cause"), slack: get("slack"),
    evidence: get("evidence"), columns, prefix, lanes, laneOf, marked: null, selected: -1,
  };
}

// The last of some segments, by their places, that begins at or before t; -1 where none does.
function lastOf(list, start, t) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[list[middle]] <= t) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function segmentAt(path, t) {
  const at = lastAtMost(path.start, t, path.many);
  return at >= 0 && t < path.start[path.many] ? at : -1;
}

// Segments too short for a pixel are summed in it by category, so that none is left out.
function drawSegments(pen, area, view, path, lane) {
  const scale = area.width / (view.to - view.from);
  const { start, category, marked } = path;
  const list = lane < 0 ? null : path.index[lane];
  const many = list ? list.length : path.many;
  const first = Math.max(0, list ? lastOf(list, start, view.from) : lastAtMost(start, view.from, many));
  const sums = new Float64Array((Math.ceil(area.width) + 1) * CATEGORIES.length);
  let touched = false;
  for (let k = first; k < many; k += 1) {
    const i = list ? list[k] : k;
    if (start[i] >= view.to) break;
    if (start[i + 1] <= view.from) continue;
    const x0 = Math.max(0, (start[i] - view.from) * scale);
    const x1 = Math.min(area.width, (start[i + 1] - view.from) * scale);
    if (x1 - x0 >= LEAST_PX) {
      pen.globalAlpha = marked && !marked(i) ? 0.18 : 1;
      pen.fillStyle = fillOf(pen, CATEGORIES[category[i]]);
      pen.fillRect(area.left + x0, area.top, Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.5 : 0), 0.5), area.height);
      if (lane >= 0 && x1 - x0 > 46 && path.span[i]) {
        pen.fillStyle = UNKNOWN.has(CATEGORIES[category[i]]) ? colours["@ink"] : "#fff";
        pen.textAlign = "left";
        pen.fillText(clipped(pen, word(path.span[i]), x1 - x0 - 8), area.left + x0 + 4, area.top + area.height / 2 + 0.5);
      }
    } else if (!marked || marked(i)) {
      touched = true;
      sums[Math.floor(x0) * CATEGORIES.length + category[i]] += x1 - x0;
    }
  }
  pen.globalAlpha = 1;
  if (touched) drawSums(pen, area, sums, lane >= 0);
}

function drawSums(pen, area, sums, alone) {
  const many = CATEGORIES.length;
  for (let x = 0; x < area.width; x += 1) {
    let whole = 0;
    for (let k = 0; k < many; k += 1) whole += sums[x * many + k];
    if (!whole) continue;
    const full = alone ? Math.max(1, Math.min(1, whole) * area.height) : area.height;
    let y = area.top + area.height;
    for (let k = 0; k < many; k += 1) {
      const part = sums[x * many + k];
      if (!part) continue;
      const height = (part / whole) * full;
      y -= height;
      pen.fillStyle = fillOf(pen, CATEGORIES[k]);
      pen.fillRect(area.left + x, y, 1, height);
    }
  }
}

function outline(pen, area, view, path) {
  const at = path.selected;
  if (at < 0) return;
  const scale = area.width / (view.to - view.from);
  const x0 = area.left + (path.start[at] - view.from) * scale;
  const width = Math.max(3, path.length[at] * scale);
  pen.strokeStyle = colours["@ink"];
  pen.lineWidth = 2;
  pen.strokeRect(x0 - (width === 3 ? 1 : 0), area.top + 1, width, area.height - 2);
}

function segmentRows(path, pick) {
  const lines = (i) => segmentLines(path, i);
  const found = (t) => {
    const i = segmentAt(path, t);
    return i < 0 ? null : { lines: lines(i), select: () => pick(i) };
  };
  const whole = {
    label: "critical path", strong: true, height: 26, gap: 8,
    draw: (pen, area, view) => { drawSegments(pen, area, view, path, -1); outline(pen, area, view, path); },
    at: found,
  };
  const lanes = path.lanes.map((lane, at) => ({
    label: lane.label, height: 18, gap: 6, lane: at,
    draw: (pen, area, view) => {
      pen.fillStyle = colours["@line"];
      pen.globalAlpha = 0.35;
      pen.fillRect(area.left, area.top, area.width, area.height);
      pen.globalAlpha = 1;
      drawSegments(pen, area, view, path, at);
      if (path.selected >= 0 && path.laneOf[path.actor[path.selected]] === at) outline(pen, area, view, path);
    },
    at: (t, y, chart) => nearInLane(path, at, t, chart, lines, pick),
  }));
  return [whole, ...lanes];
}

// In a lane the segment under the pointer, or the nearest within some pixels.
function nearInLane(path, lane, t, chart, lines, pick) {
  const reach = ((chart.view.to - chart.view.from) / chart.area.width) * 3;
  const list = path.index[lane];
  const here = lastOf(list, path.start, t);
  for (const i of [list[here], list[here + 1]]) {
    if (i !== undefined && path.start[i] - reach <= t && path.start[i + 1] + reach >= t) {
      return { lines: lines(i), select: () => pick(i) };
    }
  }
  return null;
}

// Where the path goes from one lane to another: who let whom go on.
function wakes(path) {
  return (pen, area, view, chart) => {
    const rows = chart.rows.filter((row) => row.lane !== undefined);
    const first = Math.max(0, lastAtMost(path.start, view.from, path.many) - 1);
    const last = Math.min(path.many - 1, lastAtMost(path.start, view.to, path.many));
    if (last - first > 4000) return;
    const turns = [];
    for (let i = first; i < last; i += 1) {
      const [a, b] = [path.laneOf[path.actor[i]], path.laneOf[path.actor[i + 1]]];
      if (a !== b) turns.push([path.start[i + 1], a, b, i]);
    }
    const crowded = turns.length > area.width / 9;
    let lastX = -Infinity;
    for (const [t, a, b, i] of turns) {
      const x = chart.x(t);
      const near = path.selected === i || path.selected === i + 1;
      if (x < area.left || x > area.left + area.width) continue;
      if (crowded && !near && x - lastX < 9) continue;
      lastX = x;
      arrow(pen, x, rows[a], rows[b], near);
    }
  };
}

function arrow(pen, x, from, to, strong) {
  const down = to.top > from.top;
  const y0 = down ? from.top + from.height : from.top;
  const y1 = down ? to.top : to.top + to.height;
  pen.strokeStyle = strong ? colours["@accent"] : colours["@ink"];
  pen.fillStyle = pen.strokeStyle;
  pen.globalAlpha = strong ? 1 : 0.75;
  pen.beginPath();
  pen.moveTo(x, y0);
  pen.lineTo(x, y1);
  // A rim of the page's colour: arrows cross lanes that are as dark as they are.
  pen.strokeStyle = colours["@page"];
  pen.lineWidth = strong ? 5 : 3;
  pen.stroke();
  pen.strokeStyle = pen.fillStyle;
  pen.lineWidth = strong ? 2 : 1;
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x, y1 + (down ? 3 : -3));
  pen.lineTo(x - 4, y1 + (down ? -5 : 5));
  pen.lineTo(x + 4, y1 + (down ? -5 : 5));
  pen.fill();
  pen.globalAlpha = 1;
}

function phaseRow(columns) {
  const { phase_name: name, phase_start: start, phase_length: length, phase_step: step } = columns;
  const one = (i) => [
    make("b", {}, PHASES[name[i]]), ` ${duration(length[i])}${step[i] ? `, step ${step[i] - 1}` : ""}`,
    make("div", { class: "soft" }, MEANING[PHASES[name[i]]]),
    make("div", { class: "soft" }, `${word(columns.phase_from[i])} to ${word(columns.phase_to[i])}`),
  ];
  return {
    label: "phases", strong: true, height: 18,
    draw: (pen, area, view) => {
      const scale = area.width / (view.to - view.from);
      // Neighbours of one name are drawn as one when their seams would hide them.
      for (let i = 0; i < name.length; i += 1) {
        let last = i;
        while (last + 1 < name.length && name[last + 1] === name[i] && length[last + 1] * scale < 14) last += 1;
        const x0 = Math.max(0, (start[i] - view.from) * scale);
        const x1 = Math.min(area.width, (start[last] + length[last] - view.from) * scale);
        if (x1 > 0 && x0 < area.width) {
          const shown = PHASES[name[i]];
          pen.fillStyle = colours[`phase-${shown}`];
          pen.fillRect(area.left + x0, area.top, Math.max(0.7, x1 - x0 - (x1 - x0 > 2 ? 1 : 0)), area.height);
          if (x1 - x0 > 34) {
            pen.fillStyle = colours["@ink"];
            pen.textAlign = "left";
            pen.fillText(clipped(pen, shown, x1 - x0 - 8), area.left + x0 + 4, area.top + area.height / 2 + 0.5);
          }
        }
        i = last;
      }
    },
    at: (t) => {
      const i = lastAtMost(start, t);
      return i >= 0 && t < start[i] + length[i] ? { lines: one(i) } : null;
    },
  };
}

function tokenRow(columns, firstNs) {
  const out = columns.token_out;
  return {
    label: "tokens out", height: 12,
    draw: (pen, area, view, chart) => {
      pen.fillStyle = colours["@ink"];
      for (let i = 0; i < out.length; i += 1) {
        const x = chart.x(out[i]);
        if (x < area.left || x > area.left + area.width) continue;
        const first = firstNs !== null && i === 0;
        pen.fillRect(x - (first ? 1.5 : 0.5), area.top + (first ? 0 : 3), first ? 3 : 1, first ? 12 : 6);
      }
    },
    at: (t, y, chart) => {
      const reach = ((chart.view.to - chart.view.from) / chart.area.width) * 5;
      const i = lastAtMost(out, t + reach);
      if (i < 0 || Math.abs(out[i] - t) > reach) return null;
      const gap = i ? ` ${duration(out[i] - out[i - 1])} after the one before` : " the first";
      return { lines: [make("b", {}, `token ${i}`), gap] };
    },
  };
}
