// The live view: stats, charts, rules, routes, and the clients nearest to a limit.

import { get } from "./api.js";
import { Chart, gauge, sparkline, warm } from "./charts.js";
import { clientLink, h, Listing, plain, ruleAndLimit, stranger, table, update, write } from "./dom.js";
import { compact, count, duration, limited, milliseconds, rate, share } from "./format.js";

const tile = (name, value, below, tone) =>
  h(
    "div",
    { class: `tile${tone ? ` ${tone}` : ""}` },
    h("dt", {}, name),
    h("dd", {}, h("span", { class: "figure" }, value), h("small", {}, below)),
  );

export class NowView {
  constructor(page) {
    this.page = page;
    this.ranged = true;
    this.requests = new Chart({
      title: "Requests per second",
      heap: true,
      text: rate,
      series: [
        { key: "passed", label: "Passed" },
        { key: "refused", label: "Limited" },
        { key: "banned", label: "By bans" },
        { key: "blocked", label: "By lists" },
      ],
    });
    this.times = new Chart({
      title: "Time to the last byte, in ms",
      text: milliseconds,
      series: [
        { key: "p50_ms", label: "Median" },
        { key: "p95_ms", label: "p95" },
      ],
    });
    this.tiles = h("dl", { class: "tiles" });
    this.note = h("p", { class: "note" });
    this.rules = this.figures("Rules", "No rule has counted a request in this window.");
    this.routes = this.figures("Routes", "No request in this window.");
    this.near = h("div", {});
    this.element = h(
      "div",
      { class: "stack" },
      h("h2", { class: "unseen" }, "Now"),
      this.note,
      this.tiles,
      h("div", { class: "pair" }, this.requests.element, this.times.element),
      this.near,
      this.rules.element,
      this.routes.element,
    );
  }

  async refresh() {
    const { window } = this.page;
    const found = await get("now", { window });
    if (window !== this.page.window) return;
    if (found.problem) this.page.warn(found.problem);
    if (!found.stats) return;
    this.show(found);
  }

  show({ stats, history, clients, lines }) {
    const { total } = stats;
    const all = total.refused + total.passed;
    update(
      this.tiles,
      tile("Requests", compact(all), `${rate(all / stats.window_s)} per second`),
      tile("Passed", compact(total.passed), share(total.passed, all)),
      tile("Limited", compact(limited(total)), share(limited(total), all), limited(total) ? "warm" : ""),
      tile("By bans", compact(total.banned), `${compact(total.blocked)} by lists`, total.banned ? "warm" : ""),
      tile("In shadow", compact(total.shadow_refused), "would be limited"),
      tile("Median", milliseconds(total.p50_ms), `p95: ${milliseconds(total.p95_ms)}`),
      tile("Exceptions", compact(total.exceptions), "of the application", total.exceptions ? "hot" : ""),
    );
    const { workers } = stats;
    const oldest = Math.max(0, ...workers.map((worker) => worker.age_s));
    const several = workers.length > 1;
    const age = several ? `, stats at most ${duration(oldest)} old` : "";
    write(this.note, `${workers.length} ${several ? "workers" : "worker"}${age}`);
    this.charts(history, Math.min(...workers.map((worker) => worker.published_at)));
    this.rows(this.rules, stats.rules, lines.rules);
    this.rows(this.routes, stats.routes, lines.routes);
    update(this.near, this.nearest(clients));
  }

  charts(history, reported) {
    // The current step is incomplete and would look like a drop. Stats after the last report of a worker are partial.
    const done = Object.fromEntries(
      Object.entries(history).map(([name, values]) => [name, Array.isArray(values) ? values.slice(0, -1) : values]),
    );
    const ends = done.passed.map((_, place) => history.start_at + (place + 1) * history.step_s);
    done.late = ends.filter((end) => end > reported).length;
    // `refused` includes refusals by bans and lists; in the stacked chart each request must count once.
    const refused = done.refused.map((value, place) => Math.max(0, value - done.banned[place] - done.blocked[place]));
    const counts = { passed: done.passed, refused, banned: done.banned, blocked: done.blocked };
    const rates = Object.entries(counts).map(([key, values]) => [key, values.map((value) => value / history.step_s)]);
    this.requests.update({ ...done, ...Object.fromEntries(rates) });
    this.times.update(done);
  }

  figures(caption, empty) {
    const shadowed = ([, one]) => one.shadow_refused > 0 && one.refused === 0;
    return new Listing(
      caption,
      [
        { title: caption.slice(0, -1), cell: ([name]) => stranger(name, 80) },
        { title: "Passed", number: true, cell: ([, one]) => count(one.passed) },
        {
          title: "Limited",
          number: true,
          cell: (row) =>
            caption === "Rules" && shadowed(row)
              ? h("span", { class: "faint" }, `${count(row[1].shadow_refused)} in shadow`)
              : warm(limited(row[1])),
        },
        { title: "By bans", number: true, wide: true, cell: ([, one]) => warm(one.banned) },
        {
          title: "Refused %",
          number: true,
          wide: true,
          cell: ([, one]) => share(one.refused, one.refused + one.passed),
        },
        { title: "Per second", number: true, wide: true, cell: ([, one]) => rate(one.qps) },
        { title: "p95", number: true, wide: true, cell: ([, one]) => milliseconds(one.p95_ms) },
        {
          title: "Trend",
          wide: true,
          cell: ([name, , line]) =>
            line
              ? sparkline(line.passed, line.refused, `Requests of ${plain(name, 40)} over the window`)
              : h("span", { class: "faint" }, "–"),
        },
      ],
      empty,
      ([name]) => name,
    );
  }

  rows(listing, found, lines) {
    const rows = Object.entries(found).sort(([, one], [, two]) => two.refused - one.refused || two.passed - one.passed);
    listing.show(rows.map(([name, one]) => [name, one, Object.hasOwn(lines, name) ? lines[name] : null]));
  }

  nearest(clients) {
    return table(
      "Nearest to a limit",
      [
        { title: "Client", cell: (client) => clientLink(client.key, 48) },
        { title: "Limit", wide: true, cell: ({ nearest }) => ruleAndLimit(nearest.rule, nearest.limit) },
        {
          title: "Spent",
          cell: ({ nearest }) =>
            gauge(nearest, h("span", { class: "figure" }, `${count(nearest.used)} / ${compact(nearest.amount)}`)),
        },
        { title: "Requests", number: true, wide: true, cell: (client) => count(client.requests) },
        { title: "Refused", number: true, cell: (client) => warm(client.refused) },
      ],
      clients.filter((client) => client.nearest),
      "No client has used a limit recently.",
      (client) => client.key,
    );
  }
}
