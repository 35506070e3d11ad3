// SPDX-License-Identifier: Apache-2.0
// How latencies are spread, and what time is made of at each percentile.

function histogram(name, spread) {
  const { edges_ns: edges, counts } = spread.histogram;
  const most = Math.max(...counts, 1);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 480 96");
  svg.setAttribute("role", "img");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-label", `${name}: how many of ${count(spread.n)} took how long, on a logarithmic axis`);
  // Of the first bar only the end has a place where it holds all that is shorter.
  const least = edges.length > 2 ? Math.max(edges[0], (edges[1] * edges[1]) / edges[2]) : Math.max(1, edges[0]);
  const all = edges[0] < least * 0.9;
  const [low, high] = [Math.log(Math.max(1, least)), Math.log(Math.max(2, edges.at(-1)))];
  const x = (ns) => (480 * (Math.log(Math.max(1, least, ns)) - low)) / Math.max(1e-9, high - low);
  const shape = (tag, attributes, title) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    if (title) {
      const text = document.createElementNS("http://www.w3.org/2000/svg", "title");
      text.textContent = title;
      one.append(text);
    }
    svg.append(one);
  };
  counts.forEach((many, i) => {
    if (!many) return;
    const height = Math.max(1.5, (90 * many) / most);
    shape("rect", { class: "bin", x: x(edges[i]), width: Math.max(1, x(edges[i + 1]) - x(edges[i]) - 1), y: 94 - height, height },
      `${count(many)} from ${duration(edges[i])} to ${duration(edges[i + 1])}`);
  });
  for (const [label, ns] of spread.quantiles) if (ns !== null && label !== "max") shape("line", { class: "quantile", x1: x(ns), x2: x(ns), y1: 0, y2: 94 }, `${label} ${duration(ns)}`);
  return make("figure", { class: "histogram" }, svg, make("div", { class: "ends" },
    make("span", {}, all ? `up to ${duration(edges[1])}` : duration(edges[0])), make("span", { class: "soft" }, `log scale, highest bar ${count(most)}`), make("span", {}, duration(edges.at(-1) - 1))));
}

function bandTable(name, spread, pick) {
  const rows = spread.bands.map((band, at) => {
    const over = at ? spread.bands[at - 1].high_ns : -1;
    const [top] = [...band.by_category].sort((a, b) => b[1] - a[1]);
    const mean = Math.round(band.length_ns / band.count);
    const chosen = make("button", { type: "button", class: "plain", title: "show the requests", onclick: () => pick(name, band, over) }, band.name);
    return [chosen, count(band.count), lengthy(mean), stack(band.by_category, band.length_ns, `${name} ${band.name}: ${band.by_category.map(([one, ns]) => `${one} ${share(ns, band.length_ns)}`).join(", ")}`),
      top ? `${top[0]} ${share(top[1], band.length_ns)}` : ""];
  });
  const all = spread.bands.flatMap((band) => band.by_category.map(([one, ns]) => [band.name, one, lengthy(Math.round(ns / band.count)), share(ns, band.length_ns), numeric(duration(ns), ns)]));
  return make("div", {},
    table(`What ${name} is made of, by percentile`, [{ name: "band", left: true }, { name: "n" }, { name: "mean" }, { name: "path by category", left: true }, { name: "mostly", left: true }], rows, { class: "bands" }),
    folded("All categories as a table", table(`${name} by percentile and category`, [{ name: "band", left: true }, { name: "category", left: true }, { name: "mean" }, { name: "share" }, { name: "together" }], all)));
}

const LATENCIES = [["TTFT", "time to first token, of each request"], ["ITL", "gap between two tokens of a request"], ["TPOT", "mean gap of a request"]];

function spreadSection(spread, pick) {
  const used = new Set(Object.values(spread).flatMap((one) => one.bands.flatMap((band) => band.by_category.map(([name]) => name))));
  const each = LATENCIES.map(([name, about]) => {
    const one = spread[name];
    if (!one.n) return make("div", {}, make("h3", {}, name), make("p", { class: "note" }, "No token was seen."));
    return make("div", { "data-spread": name }, make("h3", {}, name, make("small", {}, ` ${about}, n ${count(one.n)}`)),
      make("p", { class: "quantiles" }, one.quantiles.map(([label, ns]) => make("span", {}, `${label} `, numeric(duration(ns), ns, { "data-quantile": label })))),
      histogram(name, one), bandTable(name, one, pick));
  });
  return section("spread", "How latencies are spread", "Dashed: p50, p90, p99. A band opens the list of its requests.", legend(CATEGORIES.filter((name) => used.has(name))), make("div", { class: "three" }, each));
}
