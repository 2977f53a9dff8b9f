// Formats numbers, times and durations.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export const count = (value) => (missing(value) ? "–" : WHOLE.format(value));

export const compact = (value) => (missing(value) ? "–" : value < 10000 ? WHOLE.format(value) : SHORT.format(value));

export function rate(value) {
  if (missing(value)) return "–";
  return value >= 100 ? compact(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function share(part, whole) {
  if (!whole) return "–";
  const percent = (100 * part) / whole;
  return percent && percent < 0.1 ? "< 0.1 %" : `${percent >= 10 ? percent.toFixed(0) : percent.toFixed(1)} %`;
}

export function milliseconds(value) {
  if (missing(value)) return "–";
  return value >= 10000
    ? `${(value / 1000).toFixed(1)} s`
    : value >= 100
      ? `${WHOLE.format(value)} ms`
      : `${value.toPrecision(2)} ms`;
}

// Format a duration in its two largest units: "1 h 20 m".
export function duration(seconds) {
  if (missing(seconds)) return "–";
  if (seconds > 0 && seconds < 1) return "< 1 s";
  let rest = Math.ceil(seconds);
  const parts = [];
  for (const [unit, length] of UNITS) {
    const whole = Math.floor(rest / length);
    rest -= whole * length;
    if (whole) parts.push(`${whole} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

// Format as "2026-01-31 12:00:00" in local time.
const local = (at) => new Date(at * 1000).toLocaleString("sv");

export const clock = (at, seconds = true) => local(at).slice(11, seconds ? 19 : 16);

// Format a moment: only the time if it is today, else the date too.
export function moment(at) {
  if (missing(at)) return "–";
  const [day] = local(now()).split(" ");
  return local(at).startsWith(day) ? clock(at) : local(at).slice(0, 16);
}

export const now = () => Date.now() / 1000;

// Return the requests refused by limits, without those refused by bans and lists.
export const limited = (traffic) => traffic.refused - traffic.banned - traffic.blocked;
