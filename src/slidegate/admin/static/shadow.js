// The view of shadow rules: the requests and clients that they would have refused.

import { get } from "./api.js";
import { meter, warm } from "./charts.js";
import { clientLink, h, plain, stranger, table, update } from "./dom.js";
import { count, share } from "./format.js";

export class ShadowView {
  constructor(page) {
    this.page = page;
    this.ranged = true;
    this.body = h("div", { class: "stack" });
    this.element = h("div", { class: "stack" }, h("h2", { class: "unseen" }, "Shadow rules"), this.body);
  }

  async refresh() {
    const { window } = this.page;
    const found = await get("shadow", { window });
    update(
      this.body,
      found.rules.length
        ? [
            h(
              "p",
              { class: "note" },
              `Shadow rules count requests but never refuse. Stats of the last ${window}; clients of the last hour.`,
            ),
            table(
              "Shadow rules",
              [
                { title: "Rule", cell: (rule) => stranger(rule.name, 80) },
                { title: "Limits", wide: true, cell: (rule) => plain(rule.limits.join("; "), 80) },
                { title: "Passed", number: true, cell: (rule) => count(rule.passed) },
                { title: "Would refuse", number: true, cell: (rule) => warm(rule.would_refuse) },
                {
                  title: "Refused %",
                  cell: (rule) =>
                    h(
                      "span",
                      { class: "gauge" },
                      meter(rule.would_refuse, rule.passed, `${share(rule.would_refuse, rule.passed)} of the requests`),
                      h("span", { class: "figure" }, share(rule.would_refuse, rule.passed)),
                    ),
                },
              ],
              found.rules,
              "",
              (rule) => rule.name,
            ),
            found.rules.map((rule) =>
              table(
                `Clients that ${plain(rule.name, 60)} would have refused`,
                [
                  { title: "Client", cell: (client) => clientLink(client.key) },
                  { title: "Refusals", number: true, cell: (client) => count(client.count) },
                ],
                rule.clients,
                "None recently.",
                (client) => client.key,
              ),
            ),
          ]
        : h(
            "section",
            { class: "card" },
            h("h2", {}, "Shadow rules"),
            h(
              "p",
              { class: "empty" },
              "There are no shadow rules. For a rule with shadow=True, this view lists the clients it would refuse.",
            ),
          ),
    );
  }
}
