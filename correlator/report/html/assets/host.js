// SPDX-License-Identifier: Apache-2.0
// Rows of a chart, and a table: what the host and its devices did meanwhile.

// How busy the GPU's streams were, with whatever work.
function streamRows(one) {
  const { columns } = one;
  return (one.streams ?? []).map((stream, at) => {
    const busy = columns[`stream${at}`];
    const edge = columns.stream_edge;
    const portion = (b) => busy[b] / Math.max(1, edge[b + 1] - edge[b]);
    return {
      label: [word(stream.name), `all its work: ${share(stream.busy_ns, one.wall_ns)}`], height: 24, gap: 5,
      draw: (pen, area, view, chart) => {
        pen.fillStyle = colours.gpu;
        for (let b = 0; b < busy.length; b += 1) {
          if (!busy[b] || edge[b + 1] <= view.from || edge[b] >= view.to) continue;
          const x0 = Math.round(Math.max(area.left, chart.x(edge[b])));
          const x1 = Math.round(Math.min(area.left + area.width, chart.x(edge[b + 1])));
          const height = Math.max(1, portion(b) * area.height);
          pen.fillRect(x0, area.top + area.height - height, Math.max(1, x1 - x0), height);
        }
        pen.strokeStyle = colours["@line"];
        pen.strokeRect(area.left, area.top + area.height - 0.5, area.width, 0);
      },
      at: (t) => {
        const b = lastAtMost(edge, t, busy.length);
        if (b < 0) return null;
        return { lines: [make("b", {}, `${share(busy[b], edge[b + 1] - edge[b])} busy`), ` ${word(stream.name)}`,
          make("div", { class: "soft" }, `+${duration(edge[b], 4)} to +${duration(edge[b + 1], 4)}, overlap counted once, whoever launched it`)] };
      },
    };
  });
}

// What the host did meanwhile; `off` is what the chart's zero is on the page's axis.
function seriesRows(all, off, length) {
  return all.filter((one) => overlaps(one, off, length)).map((one) => {
    let most = 0;
    one.value.forEach((value, i) => { if (one.start[i] < off + length && one.end[i] > off) most = Math.max(most, value); });
    // A share of the time is drawn as one: a row that is half full says half of the time.
    const full = one.unit.startsWith("%") ? Math.max(100, most) : most;
    return {
      label: [one.what, one.who || "host"], height: 24, gap: 5,
      draw: (pen, area, view, chart) => {
        const base = area.top + area.height;
        pen.strokeStyle = colours["@line"];
        pen.strokeRect(area.left, base - 0.5, area.width, 0);
        pen.fillStyle = colours["@series"];
        for (let i = 0; i < one.start.length; i += 1) {
          // Whole pixels: readings that follow each other have no seam.
          const x0 = Math.round(Math.max(area.left, chart.x(one.start[i] - off)));
          const x1 = Math.round(Math.min(area.left + area.width, chart.x(one.end[i] - off)));
          if (x1 <= area.left || x0 >= area.left + area.width || !one.value[i]) continue;
          const height = full > 0 ? (one.value[i] / full) * (area.height - 2) : 0;
          pen.fillRect(x0, base - Math.max(1, height), Math.max(1, x1 - x0), Math.max(1, height));
        }
        const text = `max ${reading(most, one.unit)}`;
        pen.font = FONT;
        const wide = pen.measureText(text).width;
        pen.fillStyle = colours["@page"];
        pen.globalAlpha = 0.8;
        pen.fillRect(area.left + area.width - wide - 6, area.top, wide + 6, 13);
        pen.globalAlpha = 1;
        pen.fillStyle = colours["@soft"];
        pen.textAlign = "right";
        pen.fillText(text, area.left + area.width - 3, area.top + 7);
      },
      at: (t) => {
        const i = lastAtMost(one.start, t + off);
        const inside = i >= 0 && t + off < one.end[i];
        const value = inside ? reading(one.value[i], one.unit) : "no reading";
        return { lines: [make("b", {}, value), ` ${one.what}`, make("div", { class: "soft" }, `${one.who || "host"} · ${one.metric}`)] };
      },
    };
  });
}

const overlaps = (one, off, length) =>
  one.start.some((start, i) => start < off + length && one.end[i] > off && one.value[i]);

function seriesTable(all, off, length) {
  const rows = all.filter((one) => overlaps(one, off, length)).map((one) => {
    let [least, most, many, sum, whole] = [Infinity, -Infinity, 0, 0, 0];
    one.start.forEach((start, i) => {
      const lasts = Math.min(one.end[i], off + length) - Math.max(start, off);
      if (lasts <= 0) return;
      least = Math.min(least, one.value[i]);
      most = Math.max(most, one.value[i]);
      sum += one.value[i] * lasts;
      whole += lasts;
      many += 1;
    });
    return [one.what, one.who || "host", reading(least, one.unit), reading(sum / whole, one.unit), reading(most, one.unit), count(many), one.metric];
  });
  const columns = [{ name: "what", left: true }, { name: "whose", left: true }, { name: "least" },
    { name: "mean over time" }, { name: "most" }, { name: "readings" }, { name: "metric", left: true }];
  return table("What the host and its devices did meanwhile", columns, rows);
}
