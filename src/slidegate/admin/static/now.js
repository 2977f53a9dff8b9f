// The view of the present: figures, charts, rules, routes, and the clients nearest to a limit.

import { h, table, stranger, renew, plain } from "./dom.js";
import { Chart, meter, sparkline } from "./charts.js";
import { compact, count, duration, milliseconds, rate, share } from "./format.js";

const WINDOWS = ["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"];
const tile = (name, value, below, tone) => h("div", { class: `tile${tone ? ` ${tone}` : ""}` },
  h("dt", {}, name), h("dd", {}, h("span", { class: "figure" }, value), h("small", {}, below)));

export class NowView {
  constructor(page) {
    this.page = page;
    this.requests = new Chart({
      title: "Requests a second", heap: true, text: rate,
      series: [{ key: "passed", label: "Passed" }, { key: "refused", label: "Refused" }, { key: "banned", label: "Banned" }],
    });
    this.times = new Chart({
      title: "Time to the last byte, in ms", text: milliseconds,
      series: [{ key: "p50_ms", label: "Median" }, { key: "p95_ms", label: "95 %" }],
    });
    this.tiles = h("dl", { class: "tiles" });
    this.tables = h("div", { class: "stack" });
    this.choice = h("fieldset", { class: "segments" }, h("legend", { class: "unseen" }, "Window of time"), WINDOWS.map((window) =>
      h("label", {}, h("input", { type: "radio", name: "window", value: window, checked: window === page.window, onchange: () => page.choose(window) }), h("span", {}, window))));
    this.note = h("p", { class: "note" });
    this.element = h("div", { class: "stack" }, h("div", { class: "head" }, h("h2", { class: "unseen" }, "Now"), this.choice, this.note),
      this.tiles, h("div", { class: "pair" }, this.requests.element, this.times.element), this.tables);
  }

  show(frame) {
    const { stats, history } = frame;
    const { total } = stats;
    const turned = total.refused + total.passed;
    renew(this.tiles,
      tile("Requests", compact(turned), `${rate(turned / stats.window_s)} a second`),
      tile("Passed", compact(total.passed), share(total.passed, turned)),
      tile("Refused", compact(total.refused), `${share(total.refused, turned)}; ${compact(total.banned)} by bans`, total.refused ? "warm" : ""),
      tile("In shadow", compact(total.shadow_refused), "would have been refused"),
      tile("Median", milliseconds(total.p50_ms), `95 %: ${milliseconds(total.p95_ms)}`),
      tile("Exceptions", compact(total.exceptions), "of the application", total.exceptions ? "hot" : ""));
    const workers = stats.workers.length;
    const oldest = Math.max(0, ...stats.workers.map((worker) => worker.age_s));
    this.note.textContent = `${workers} ${workers === 1 ? "worker" : "workers"}${workers > 1 ? `, figures at most ${duration(oldest)} old` : ""}`;
    // The running step, and those for which other workers have not published yet, would look like a fall at the end.
    const late = 1 + (workers > 1 ? Math.min(2, Math.ceil(5 / history.step_s)) : 0);
    const done = Object.fromEntries(Object.entries(history).map(([name, values]) => [name, Array.isArray(values) ? values.slice(0, -late) : values]));
    const each = (values) => values.map((value) => (value === null ? null : value / history.step_s));
    // Refusals by bans are refusals too; drawn above each other they must not count twice.
    const limited = done.refused.map((value, place) => Math.max(0, value - done.banned[place]));
    this.requests.update({ ...done, passed: each(done.passed), refused: each(limited), banned: each(done.banned) });
    this.times.update(done);
    renew(this.tables, h("div", { class: "pair" },
      this.figures("Rules", stats.rules, frame.sparks?.rules, "No rule has counted a request in this window."), this.nearest(frame.clients)),
    this.figures("Routes", stats.routes, frame.sparks?.routes, "No request in this window."));
  }

  figures(caption, found, sparks = {}, empty) {
    const rows = Object.entries(found).sort(([, one], [, two]) => two.refused - one.refused || two.passed - one.passed);
    return table(caption, [
      { title: caption.slice(0, -1), cell: ([name]) => stranger(name, 80) },
      { title: "Passed", number: true, cell: ([, figures]) => count(figures.passed) },
      { title: "Refused", number: true, cell: ([, figures]) => h("span", { class: figures.refused ? "warm" : "faint" }, count(figures.refused)) },
      { title: "Share", number: true, wide: true, cell: ([, figures]) => share(figures.refused, figures.refused + figures.passed) },
      { title: "A second", number: true, wide: true, cell: ([, figures]) => rate(figures.qps) },
      { title: "95 %", number: true, wide: true, cell: ([, figures]) => milliseconds(figures.p95_ms) },
      { title: "Course", wide: true, cell: ([name]) => (Object.hasOwn(sparks, name)
        ? sparkline(sparks[name].passed, sparks[name].refused, `Requests of ${plain(name, 40)} over the window`) : h("span", { class: "faint" }, "–")) },
    ], rows, empty);
  }

  nearest(clients) {
    return table("Nearest to a limit", [
      { title: "Client", cell: (client) => h("a", { href: `#clients/${encodeURIComponent(client.key)}` }, stranger(client.key, 48)) },
      { title: "Limit", wide: true, cell: ({ nearest }) => h("span", {}, stranger(nearest.rule, 32), h("span", { class: "faint" }, ` ${plain(nearest.limit, 32)}`)) },
      { title: "Spent", cell: ({ nearest }) => h("span", { class: "gauge" },
        meter(nearest.used, nearest.amount, `${count(nearest.used)} of ${count(nearest.amount)} spent`), h("span", { class: "figure" }, `${count(nearest.used)} / ${compact(nearest.amount)}`)) },
      { title: "Requests", number: true, wide: true, cell: (client) => count(client.requests) },
      { title: "Refused", number: true, cell: (client) => h("span", { class: client.refused ? "warm" : "faint" }, count(client.refused)) },
    ], clients.filter((client) => client.nearest), "No client has spent anything of a limit lately.");
  }
}
