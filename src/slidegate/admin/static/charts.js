// Draws time series as SVG. Colours are CSS classes, so a change of theme needs no redraw.

import { h, mark, numbers, replace, svg, update } from "./dom.js";
import { clock, count, moment } from "./format.js";

const HEIGHT = 176;
const INSET = { left: 44, right: 10, top: 8, bottom: 20 };
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];
const ROWS = 60;

// Return the smallest step (1, 2 or 5 times a power of ten) that divides a span into at most `parts`.
function niceStep(span, parts) {
  const least = span / parts;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999999);
}

// Format the label of a grid line with as many decimal places as the step between lines needs.
const axis = (value, step) =>
  value.toLocaleString("en", {
    minimumFractionDigits: value ? Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) : 0,
    maximumFractionDigits: 4,
  });

// Return the path through points, with gaps where one is null; a point between two gaps is a dot.
function path(points) {
  let drawn = "";
  let open = false;
  for (const point of points) {
    const place = point && `${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    if (point) drawn += open ? `L${place}` : `M${place}h0`;
    open = point !== null;
  }
  return drawn;
}

// Stack the values of all series, so that the top line is the sum.
function heaped(series, values) {
  const sums = [];
  return series.map(({ key }) => values[key].map((value, place) => (sums[place] = (sums[place] ?? 0) + (value ?? 0))));
}

export class Chart {
  // `series` is [{key, label}], in the order of drawing; `text(value)` writes a value; `heap` stacks the areas.
  constructor({ title, series, text, heap = false, gap = "No requests in this window." }) {
    Object.assign(this, { title, series, text, heap, gap, data: null, hover: null, drawn: "" });
    const name = mark("chart");
    this.plot = h("div", { class: "plot" });
    this.tip = h("div", { class: "tip", hidden: true });
    // The cursor makes the chart accessible: arrow keys move it, and screen readers announce its value.
    this.cursor = h("input", { type: "range", min: "0", max: "0", class: "cursor", "aria-label": `${title}, by time` });
    this.legend = h(
      "ul",
      { class: "legend" },
      series.map(({ key, label }) => h("li", {}, h("span", { class: `swatch s-${key}` }), label)),
    );
    this.rows = h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `${title}, as a table` });
    this.details = h("details", { ontoggle: () => this.tabulate() }, h("summary", {}, "As a table"), this.rows);
    this.element = h(
      "figure",
      { class: "card chart", "aria-labelledby": name },
      h("figcaption", {}, h("h2", { id: name }, title), this.legend),
      h("div", { class: "frame" }, this.plot, this.cursor, this.tip),
      this.details,
    );
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.pointAt(null));
    this.cursor.addEventListener("input", () => this.pointAt(this.cursor.valueAsNumber));
    this.cursor.addEventListener("focus", () => this.pointAt(this.cursor.valueAsNumber));
    this.cursor.addEventListener("blur", () => this.pointAt(null));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  // `data` is {step_s, start_at, late, [key of each series]: list of numbers or nulls}; the last `late` steps are
  // incomplete.
  update(data) {
    this.data = data;
    this.draw();
    this.tabulate();
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!this.data || !width) return;
    const values = this.data;
    const length = values[this.series[0].key].length;
    const lines = this.heap ? heaped(this.series, values) : this.series.map(({ key }) => values[key]);
    const known = lines.flat().filter((value) => value !== null && value !== undefined);
    const empty = !known.some((value) => value > 0);
    const top = empty ? 1 : Math.max(...known);
    const step = niceStep(top, 4);
    const most = Math.ceil(top / step - 1e-9) * step;
    const right = width - INSET.right;
    const floor = HEIGHT - INSET.bottom;
    const x = (place) => INSET.left + ((right - INSET.left) * place) / Math.max(length - 1, 1);
    const y = (value) => floor - ((floor - INSET.top) * value) / most;
    this.scale = { x, length };
    const parts = [];
    for (let value = 0; value <= most + step / 2; value += step) {
      parts.push(svg("line", { class: "grid", x1: INSET.left, x2: right, y1: y(value), y2: y(value) }));
      if (!empty || value === 0)
        parts.push(
          svg("text", { class: "tick", x: INSET.left - 6, y: y(value) + 4, "text-anchor": "end" }, axis(value, step)),
        );
    }
    parts.push(...this.times(x, length, right - INSET.left, floor));
    // Draw the topmost area first: the lower ones cover it.
    const order = this.heap ? [...lines.keys()].reverse() : [...lines.keys()];
    for (const number of order) {
      const points = lines[number].map((value, place) =>
        value === null || value === undefined ? null : [x(place), y(value)],
      );
      const line = path(points);
      const sure = Math.max(0, length - 1 - (values.late ?? 0));
      const { key } = this.series[number];
      if (this.heap && line)
        parts.push(
          svg("path", { class: `area s-${key}`, d: `${line}L${x(length - 1).toFixed(1)} ${floor}L${x(0)} ${floor}Z` }),
        );
      parts.push(svg("path", { class: `line s-${key}`, d: path(points.slice(0, sure + 1)) }));
      if (sure < length - 1) parts.push(svg("path", { class: `line late s-${key}`, d: path(points.slice(sure)) }));
    }
    if (empty)
      parts.push(
        svg("text", { class: "gap", x: (INSET.left + right) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, this.gap),
      );
    parts.push(svg("line", { class: "cross", y1: INSET.top, y2: floor, x1: 0, x2: 0, visibility: "hidden" }));
    update(
      this.plot,
      svg(
        "svg",
        {
          viewBox: `0 0 ${width} ${HEIGHT}`,
          width,
          height: HEIGHT,
          role: "img",
          "aria-label": this.summary(empty),
        },
        parts,
      ),
    );
    this.showTip();
  }

  times(x, length, width, floor) {
    const { start_at: start, step_s: step } = this.data;
    const span = step * Math.max(length - 1, 1);
    const apart = STEPS_S.find((candidate) => span / candidate <= Math.max(2, width / 90)) ?? 86400;
    const shift = new Date(start * 1000).getTimezoneOffset() * 60;
    const parts = [];
    for (let at = Math.ceil((start - shift) / apart) * apart + shift; at <= start + span; at += apart) {
      const place = x((at - start) / step);
      parts.push(svg("line", { class: "grid", x1: place, x2: place, y1: floor, y2: floor + 4 }));
      if (place > INSET.left + 14 && place < INSET.left + width - 18) {
        parts.push(
          svg("text", { class: "tick", x: place, y: HEIGHT - 4, "text-anchor": "middle" }, clock(at, apart < 60)),
        );
      }
    }
    return parts;
  }

  // Return the text alternative for screen readers.
  summary(empty) {
    if (empty) return `${this.title}: ${this.gap}`;
    const parts = this.series.map(({ key, label }) => {
      const known = this.data[key].filter((value) => value !== null && value !== undefined);
      return known.length
        ? `${label} ${this.text(known.at(-1))} now, at most ${this.text(Math.max(...known))}`
        : `${label} without stats`;
    });
    return `${this.title} since ${moment(this.data.start_at)}: ${parts.join("; ")}.`;
  }

  point(event) {
    if (!this.scale) return;
    const { x, length } = this.scale;
    const across = event.clientX - this.plot.getBoundingClientRect().left;
    const place = Math.round(((across - x(0)) / Math.max(x(length - 1) - x(0), 1)) * (length - 1));
    this.pointAt(Math.min(Math.max(place, 0), length - 1));
  }

  // Show the values at a position; hide them for null.
  pointAt(place) {
    this.hover = place;
    this.showTip();
  }

  // Extend the cursor to all positions. If it is at the newest, it stays at the newest.
  setCursor(length) {
    const newest = this.cursor.value === this.cursor.max;
    this.cursor.max = length - 1;
    if (newest) this.cursor.value = length - 1;
    if (this.hover !== null && document.activeElement === this.cursor) this.hover = this.cursor.valueAsNumber;
    const place = this.cursor.valueAsNumber;
    const values = this.series.map(({ key, label }) => `${label} ${this.text(this.data[key][place])}`);
    this.cursor.setAttribute("aria-valuetext", `${moment(this.timeOf(place))}: ${values.join(", ")}`);
  }

  timeOf(place) {
    return this.data.start_at + place * this.data.step_s;
  }

  showTip() {
    if (this.data) this.setCursor(this.data[this.series[0].key].length);
    const shown = this.hover !== null && this.scale && this.hover < this.scale.length;
    this.tip.hidden = !shown;
    const cross = this.plot.querySelector(".cross");
    cross?.setAttribute("visibility", shown ? "visible" : "hidden");
    if (!shown || !cross) return;
    const at = this.scale.x(this.hover);
    cross.setAttribute("x1", at);
    cross.setAttribute("x2", at);
    replace(
      this.tip,
      h("strong", {}, moment(this.timeOf(this.hover))),
      this.series.map(({ key, label }) =>
        h(
          "div",
          {},
          h("span", { class: `swatch s-${key}` }),
          `${label} `,
          h("span", { class: "figure" }, this.text(this.data[key][this.hover])),
        ),
      ),
    );
    const room = this.plot.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.min(at + 12, Math.max(room, 0))}px`;
  }

  tabulate() {
    if (!this.details.open || !this.data) return;
    const length = this.data[this.series[0].key].length;
    const rows = [];
    for (let place = length - 1; place >= Math.max(0, length - ROWS); place -= 1) {
      const at = this.timeOf(place);
      rows.push([at, moment(at), ...this.series.map(({ key }) => this.text(this.data[key][place]))]);
    }
    const heads = ["From", ...this.series.map(({ label }) => label)];
    update(this.rows, numbers(`${this.title}, newest first`, heads, rows));
  }
}

// Return a small line chart without axes.
export function sparkline(passed, refused, label) {
  const width = 96;
  const height = 20;
  const sums = passed.map((value, place) => value + (refused[place] ?? 0));
  const top = Math.max(1, ...sums);
  const x = (place) => (width * place) / Math.max(passed.length - 1, 1);
  const y = (value) => height - 1 - ((height - 3) * value) / top;
  const draw = (values) => path(values.map((value, place) => [x(place), y(value)]));
  const below = draw(refused);
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    svg("path", { class: "line s-passed", d: draw(sums) }),
    refused.some((value) => value > 0) &&
      svg("path", { class: "area s-refused", d: `${below}L${width} ${height}L0 ${height}Z` }),
  );
}

// Return a bar that shows how much of a limit is spent.
export function meter(used, amount, label) {
  const part = amount ? Math.min(used / amount, 1) : 0;
  const level = part >= 1 ? "full" : part >= 0.8 ? "near" : "calm";
  return svg(
    "svg",
    { class: `meter ${level}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "rail", x: 0, y: 0, width: 100, height: 8, rx: 2 }),
    svg("rect", { class: "spent", x: 0, y: 0, width: 100 * part, height: 8, rx: 2 }),
  );
}

export const warm = (value) => h("span", { class: value ? "warm" : "faint" }, count(value));

export const gauge = ({ used, amount }, words) =>
  h("span", { class: "gauge" }, meter(used, amount, `${used} of ${amount} spent`), words);

// Return a bar chart of the slices of a window, oldest first.
export function slices(window, label) {
  const width = 320;
  const height = 56;
  const found = window.slices;
  const first = Math.min(...found.map((slice) => slice.start_at));
  const last = Math.max(...found.map((slice) => slice.end_at));
  const span = Math.max(last - first, 1e-6);
  const top = Math.max(1, ...found.map((slice) => slice.count));
  const bars = found.map((slice) => {
    const x = (width * (slice.start_at - first)) / span;
    const wide = Math.max((width * (slice.end_at - slice.start_at)) / span - 1, 1.5);
    const high = slice.count ? Math.max(((height - 10) * slice.count) / top, 2) : 0;
    return [
      svg("rect", { class: "slot", x, y: height - 2, width: wide, height: 2 }),
      high > 0 &&
        svg(
          "rect",
          { class: "units", x, y: height - 2 - high, width: wide, height: high },
          svg("title", {}, `${slice.count} from ${moment(slice.start_at)}`),
        ),
    ];
  });
  return svg(
    "svg",
    {
      class: "slices",
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    bars,
  );
}
