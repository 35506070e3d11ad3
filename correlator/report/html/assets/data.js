// SPDX-License-Identifier: Apache-2.0
// The page's data: what is shown first, shared words, and blocks that are unpacked when needed.

const HEAD = JSON.parse(document.getElementById("head").textContent);
const CATEGORIES = HEAD.categories.map(([name]) => name);
const MEANING = Object.fromEntries([...HEAD.categories, ...HEAD.phases]);
const PHASES = HEAD.phases.map(([name]) => name);
const UNKNOWN = new Set(["unobserved", "unexplained", "unknown"]);
const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };
const LEX = { words: [], actors: [], causes: [] };

const unpacked = new Map();
const word = (at) => LEX.words[at] ?? "";

async function unpack(id) {
  if (!document.getElementById(id) && document.readyState === "loading") {
    await new Promise((done) => document.addEventListener("DOMContentLoaded", done, { once: true }));
  }
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const heads = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const base = Math.ceil((4 + length) / 8) * 8;
  return heads.map(({ columns, ...head }) => {
    const found = {};
    for (const [name, [type, at, many]] of Object.entries(columns)) {
      found[name] = new TYPES[type](buffer, base + at, many);
    }
    return { ...head, columns: found };
  });
}

// A few blocks stay unpacked: who goes back to a request finds it at once.
function block(at) {
  if (!unpacked.has(at)) unpacked.set(at, unpack(`b${at}`));
  const found = unpacked.get(at);
  unpacked.delete(at);
  unpacked.set(at, found);
  if (unpacked.size > 24) unpacked.delete(unpacked.keys().next().value);
  return found;
}

async function documentAt(place) {
  const all = await block(place[0]);
  return all[place[1]];
}

async function loadWords() {
  const [found] = await unpack("words");
  Object.assign(LEX, found);
}

// Starts of segments from their lengths.
function startsOf(length) {
  const start = new Float64Array(length.length + 1);
  for (let i = 0; i < length.length; i += 1) start[i + 1] = start[i] + length[i];
  return start;
}

// The last place whose value is at most `value`; -1 where none is.
function lastAtMost(sorted, value, many = sorted.length) {
  let low = 0;
  let high = many;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

let seriesLoaded = null;
function loadSeries() {
  seriesLoaded ??= block(HEAD.series_block).then(([{ columns }]) =>
    HEAD.series.map((one, at) => ({
      ...one,
      start: columns[`start${at}`],
      end: columns[`end${at}`],
      value: columns[`value${at}`],
    })));
  return seriesLoaded;
}
