// SPDX-License-Identifier: Apache-2.0
// Rows of a chart: a whole recording's requests and steps over time.

function binRow(run, columns, pick) {
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
      return { select: () => pick(edges[b], edges[b + 1]), lines: [make("b", {}, `${rate(b).toPrecision(3)} requests in flight`), make("div", { class: "soft" }, `+${duration(edges[b], 4)} to +${duration(edges[b + 1], 4)}`),
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

const MIX_PX = 3;

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
  // Prefill tokens and all tokens of the steps that begin within some pixels.
  const mixes = (view, area) => {
    const found = new Map();
    const scale = area.width / (view.to - view.from);
    for (let k = Math.max(0, lastAtMost(starts, view.from)); k < order.length && starts[k] < view.to; k += 1) {
      const i = order[k];
      const x = Math.floor(((at[i] - view.from) * scale) / MIX_PX) * MIX_PX;
      const sum = found.get(x) ?? [0, 0];
      if (tokens[i]) found.set(x, [sum[0] + prefill[i], sum[1] + tokens[i]]);
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
        pen.fillStyle = colours["@c-tokens-decode"];
        pen.fillRect(area.left + x, area.top + area.height - full, wide, full - part);
        pen.fillStyle = colours["@c-tokens-prefill"];
        pen.fillRect(area.left + x, area.top + area.height - part, wide, part);
      }
      pen.fillStyle = colours["@soft"];
      pen.textAlign = "right";
      pen.fillText(`max ${plural(mostTokens, "token")}`, area.left + area.width - 3, area.top + 7);
    },
    at: (t) => lines(nearest(t)),
  }, {
    label: ["share of prefill", "in the tokens"], height: 14, gap: 8,
    draw: (pen, area, view) => {
      for (const [x, [part, full]] of mixes(view, area)) {
        const height = (part / full) * area.height;
        pen.fillStyle = colours["@c-tokens-decode"];
        pen.fillRect(area.left + x, area.top, MIX_PX, area.height - height);
        pen.fillStyle = colours["@c-tokens-prefill"];
        pen.fillRect(area.left + x, area.top + area.height - height, MIX_PX, height);
      }
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
