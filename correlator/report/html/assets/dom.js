// SPDX-License-Identifier: Apache-2.0
// Elements. Texts become text nodes, so no name of a recording can become markup.

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

// A number with what is behind it, so that what is shown can be held against the JSON report.
const numeric = (text, value, attributes = {}) =>
  make("span", { class: "number", "data-value": value === null || value === undefined ? "" : value, ...attributes }, text);

const lengthy = (ns, digits = 3) => numeric(duration(ns, digits), ns);

function table(caption, columns, rows, attributes = {}) {
  const head = columns.map((column) =>
    make("th", { scope: "col", class: column.left ? "" : "right", title: column.about }, column.name));
  const body = rows.map((cells) => make("tr", {}, cells.map((cell, at) => {
    const tag = at ? "td" : "th";
    return make(tag, { class: columns[at].left ? "" : "right", scope: at ? null : "row" }, cell);
  })));
  return make("div", { class: "wide" }, make("table", columns.length > 5 && !attributes.class ? { ...attributes, class: "many" } : attributes,
    make("caption", {}, caption), make("thead", {}, make("tr", {}, head)), make("tbody", {}, body)));
}

const folded = (title, ...children) => make("details", {}, make("summary", {}, title), ...children);

function section(id, title, note, ...children) {
  return make("section", { id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, title), note ? make("p", { class: "note" }, note) : "", ...children);
}

const alive = make("div", { class: "unseen", "aria-live": "polite", id: "announce" });
const announce = (text) => { alive.textContent = text; };

const tip = make("div", { class: "tip", role: "tooltip", hidden: true });
function showTip(x, y, ...children) {
  tip.replaceChildren(...children.flat());
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? Math.max(4, x - box.width - 14) : x + 14;
  const top = y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 16;
  tip.style.setProperty("left", `${left}px`);
  tip.style.setProperty("top", `${top}px`);
}
const hideTip = () => { tip.hidden = true; };
