// SPDX-License-Identifier: Apache-2.0
// One colour for a category wherever it is shown; what is unknown is hatched.

const cssName = (name) => `--c-${name}`;
let colours = {};
let hatch = new Map();

// Variables hold a colour for light and one for dark; an element says which of them holds.
function readColours() {
  const probe = make("i", { hidden: true });
  document.body.append(probe);
  const resolved = (name) => {
    probe.style.setProperty("color", `var(${name})`);
    return getComputedStyle(probe).color;
  };
  colours = {};
  hatch = new Map();
  for (const name of [...CATEGORIES, ...PHASES.map((one) => `phase-${one}`)]) colours[name] = resolved(cssName(name));
  for (const name of ["ink", "soft", "faint", "line", "page", "accent", "panel", "series", "c-tokens-prefill", "c-tokens-decode"]) colours[`@${name}`] = resolved(`--${name}`);
  probe.remove();
}

function fillOf(context, name) {
  if (!UNKNOWN.has(name)) return colours[name];
  if (!hatch.has(name)) {
    const tile = document.createElement("canvas");
    tile.width = 6;
    tile.height = 6;
    const pen = tile.getContext("2d");
    pen.fillStyle = colours["@panel"];
    pen.fillRect(0, 0, 6, 6);
    pen.strokeStyle = colours[name];
    pen.lineWidth = 1.6;
    pen.beginPath();
    for (const off of [-6, 0, 6]) {
      pen.moveTo(off, 6);
      pen.lineTo(off + 6, 0);
    }
    pen.stroke();
    hatch.set(name, context.createPattern(tile, "repeat"));
  }
  return hatch.get(name);
}

const chip = (name, phase = false) =>
  make("i", { class: `chip k-${phase ? "phase-" : ""}${name}`, "aria-hidden": "true" });

// Parts of a whole side by side.
function stack(pairs, whole, label) {
  const parts = pairs.filter(([, ns]) => ns > 0).map(([name, ns]) =>
    make("span", {
      class: `k-${name}`, title: `${name} ${duration(ns)} ${share(ns, whole)}`,
      style: { width: `${(100 * ns) / whole}%` },
    }));
  return make("span", { class: "stack", role: "img", "aria-label": label }, parts);
}
