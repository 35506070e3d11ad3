// SPDX-License-Identifier: Apache-2.0
// Lengths, shares and counts as all reports write them (units.py); a test compares the two.

const UNITS = [[1e9, "s", 1e9], [1e6, "ms", 1e6], [1e3, "us", 1e3], [0, "ns", 1]];

function ticksOf(lengthNs, unitNs, perUnit) {
  const doubled = 2 * lengthNs * perUnit + unitNs;
  if (doubled <= Number.MAX_SAFE_INTEGER) return Math.floor(doubled / (2 * unitNs));
  const [length, unit, per] = [lengthNs, unitNs, perUnit].map(BigInt);
  return Number((2n * length * per + unit) / (2n * unit));
}

function scaleOf(lengthNs, digits = 4) {
  const size = Math.abs(lengthNs);
  const [, unit, unitNs] = UNITS.find(([least]) => size >= least);
  const whole = String(Math.floor(size / unitNs)).length;
  const finest = String(unitNs).length - 1;
  const decimals = Math.min(Math.max(digits - whole, 0), finest);
  if (unitNs < 1e9 && ticksOf(size, unitNs, 10 ** decimals) >= 1000 * 10 ** decimals) {
    return scaleOf(unitNs * 1000, digits);
  }
  return { unit, unitNs, decimals };
}

function numberIn(scale, lengthNs) {
  const per = 10 ** scale.decimals;
  const ticks = ticksOf(Math.abs(lengthNs), scale.unitNs, per);
  const sign = lengthNs < 0 && ticks ? "-" : "";
  const whole = Math.floor(ticks / per);
  if (!scale.decimals) return sign + whole;
  return `${sign}${whole}.${String(ticks % per).padStart(scale.decimals, "0")}`;
}

function duration(lengthNs, digits = 3) {
  if (lengthNs === null || lengthNs === undefined) return "?";
  if (lengthNs === 0) return "0";
  const scale = scaleOf(lengthNs, digits);
  return `${numberIn(scale, lengthNs)} ${scale.unit}`;
}

// Python rounds exact halves to the even digit, and toFixed rounds them up.
function fixed(value, decimals) {
  const text = value.toFixed(decimals);
  const exact = value.toFixed(30).slice(value.toFixed(30).indexOf(".") + 1);
  const rest = exact.slice(decimals);
  if (/^50*$/.test(rest)) {
    const kept = exact.slice(0, decimals);
    const last = Number(decimals ? kept[decimals - 1] : String(Math.floor(value)).at(-1));
    if (last % 2 === 0) return decimals ? `${Math.floor(value)}.${kept}` : `${Math.floor(value)}`;
  }
  return text;
}

function share(part, whole) {
  if (whole <= 0) return "?";
  if (part > 0 && part * 2000 < whole) return "<0.1%";
  return `${fixed((100 * part) / whole, 1)}%`;
}

const count = (value) => (value < 0 || value === null ? "?" : value.toLocaleString("en-US"));

const plural = (value, one, many) => `${count(value)} ${value === 1 ? one : many || `${one}s`}`;

function reading(value, unit) {
  const size = Math.abs(value);
  if (unit === "bytes" || unit === "bytes/s") {
    const step = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([least]) => size >= least);
    const text = step ? `${(value / step[0]).toPrecision(3)} ${step[1]}` : `${value.toFixed(0)} bytes`;
    return unit === "bytes/s" ? `${text}/s` : text;
  }
  if (unit === "ns") return duration(Math.round(value));
  const text = size >= 1000 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3);
  return unit.startsWith("%") ? `${text}${unit}` : `${text} ${unit}`.trim();
}
