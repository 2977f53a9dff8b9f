// The view of the configuration: active rules, findings, store, workers.

import { get } from "./api.js";
import { h, Listing, plain, stranger, table, update, words } from "./dom.js";
import { count, duration, milliseconds, now } from "./format.js";

const limits = (rule) => (rule.by_request ? "from a function" : rule.limits.join("; ") || "none");
const does = (rule) => [
  rule.exempt ? "exempts" : rule.action,
  rule.final && "ends the list",
  rule.conditional && "under a condition",
  rule.count_denied && "counts refusals",
];

export class ConfigView {
  constructor(page) {
    Object.assign(this, { page, everyMs: 10000, listings: new Map(), rules: null });
    this.facts = h("div", { class: "stack" });
    this.middlewares = h("div", { class: "stack" });
    this.workers = h("div", {});
    this.element = h(
      "div",
      { class: "stack" },
      h("h2", { class: "unseen" }, "Configuration"),
      this.facts,
      this.middlewares,
      this.workers,
    );
  }

  async refresh() {
    const [config, rules] = await Promise.all([get("config"), get("rules")]);
    const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
    update(
      this.facts,
      h(
        "section",
        { class: "card" },
        h("h2", {}, "This installation"),
        h(
          "dl",
          { class: "facts" },
          fact("Version", plain(config.version) + (config.compiled ? ", compiled" : "")),
          fact("Python", plain(config.python)),
          fact("Store", stranger(config.store, 200)),
          fact("Counts are shared", config.per_process ? "no: each process counts separately" : "by all workers"),
          fact("Store deadline", config.deadline_s === null ? "none" : milliseconds(config.deadline_s * 1000)),
          fact("On store failure", plain(config.on_error ?? "–")),
        ),
      ),
      table(
        "Startup findings",
        [
          { title: "Code", cell: (finding) => h("code", {}, plain(finding.code, 20)) },
          { title: "Finding", cell: (finding) => words(finding.message, 600) },
        ],
        config.findings,
        "No probable mistakes were found in this configuration.",
        (finding) => finding.middleware + finding.message,
      ),
    );
    update(
      this.workers,
      table(
        "Workers",
        [
          { title: "Worker", cell: (worker) => stranger(worker.name, 60) },
          { title: "Host", wide: true, cell: (worker) => stranger(worker.host, 60) },
          { title: "Process", number: true, cell: (worker) => worker.pid },
          {
            title: "Stats",
            number: true,
            cell: (worker) => `${duration(Math.max(0, now() - worker.published_at))} old`,
          },
        ],
        config.workers,
        "No worker has published stats yet.",
        (worker) => worker.name,
      ),
    );
    if (rules === this.rules) return;
    this.rules = rules;
    this.show(rules.middlewares);
  }

  show(middlewares) {
    const old = this.listings;
    this.listings = new Map();
    this.middlewares.replaceChildren(
      ...middlewares.map((middleware) => {
        const of = middlewares.length > 1 ? ` of ${plain(middleware.name, 60)}` : "";
        const listing = old.get(middleware.name) ?? this.listing(`Active rules${of}`);
        this.listings.set(middleware.name, listing);
        listing.show([...middleware.rules, ...middleware.endpoints]);
        return h("div", { class: "stack" }, listing.element, this.policies(middleware, of));
      }),
    );
  }

  listing(caption) {
    return new Listing(
      caption,
      [
        { title: "Rule", cell: (rule) => stranger(rule.name, 60) },
        {
          title: "Paths",
          cell: (rule) =>
            h(
              "span",
              {},
              stranger(rule.paths.join(", "), 120),
              rule.methods && h("span", { class: "faint" }, ` ${plain(rule.methods.join(" "), 60)}`),
            ),
        },
        { title: "Limits", cell: (rule) => plain(limits(rule), 120) },
        { title: "Counted by", wide: true, cell: (rule) => stranger(rule.key, 60) },
        {
          title: "Cost",
          number: true,
          wide: true,
          cell: (rule) => (rule.cost === null ? "a function" : count(rule.cost)),
        },
        { title: "Does", wide: true, cell: (rule) => plain(does(rule).filter(Boolean).join(", "), 80) },
      ],
      "This middleware has no rules.",
      (rule) => `${rule.name} ${rule.paths.join(" ")} ${limits(rule)} ${rule.methods ?? ""}`,
    );
  }

  policies(middleware, of) {
    return [
      middleware.policies.length > 0 &&
        table(
          `Ban policies${of}`,
          [
            { title: "Policy", cell: (policy) => stranger(policy.name, 60) },
            { title: "After", cell: (policy) => plain(policy.after, 40) },
            { title: "First ban", cell: (policy) => duration(policy.duration_s) },
            { title: "Factor", number: true, wide: true, cell: (policy) => policy.factor },
            { title: "Longest", wide: true, cell: (policy) => duration(policy.longest_s) },
            { title: "Does", wide: true, cell: (policy) => (policy.shadow ? "shadow" : "ban") },
          ],
          middleware.policies,
          "",
          (policy) => policy.name,
        ),
      middleware.default_limits.length > 0 &&
        h("p", { class: "note" }, `Default limits per route: ${plain(middleware.default_limits.join("; "), 120)}`),
    ];
  }
}
