// The view of clients: the busiest, and the details of one.

import { get } from "./api.js";
import { gauge, meter, slices, warm } from "./charts.js";
import { askBan, askUnban, change, explain } from "./dialogs.js";
import {
  clientLink,
  field,
  h,
  mark,
  numbers,
  plain,
  replace,
  ruleAndLimit,
  stranger,
  TYPED,
  table,
  update,
  words,
} from "./dom.js";
import { count, duration, moment, now } from "./format.js";

const SORTS = [
  ["requests", "Requests"],
  ["refused", "Refusals"],
  ["nearness", "Nearness to a limit"],
];

// Merge consecutive equal refusals into [refusal, count].
function folded(refusals) {
  const found = [];
  const like = ({ reason, rule, limit, route, status }) => JSON.stringify([reason, rule, limit, route, status]);
  for (const refusal of refusals) {
    const last = found.at(-1);
    if (last && like(last[0]) === like(refusal)) last[1] += 1;
    else found.push([refusal, 1]);
  }
  return found;
}

export class ClientsView {
  constructor(page) {
    this.page = page;
    this.sort = "requests";
    this.key = null;
    const sort = () => {
      this.sort = order.value;
      page.refresh();
    };
    const order = h(
      "select",
      { id: mark("sort"), onchange: sort },
      SORTS.map(([value, text]) => h("option", { value }, text)),
    );
    this.list = h("div", {});
    this.one = h("div", { class: "stack", "aria-live": "off" });
    this.element = h(
      "div",
      { class: "stack" },
      h("h2", { class: "unseen" }, "Clients"),
      this.search(),
      this.one,
      h("div", {}, field("Sort by", order, "inline"), this.list),
    );
  }

  search() {
    const key = h("input", {
      id: mark("client"),
      required: true,
      maxlength: 1024,
      ...TYPED,
      placeholder: "203.0.113.7",
    });
    const find = (event) => {
      event.preventDefault();
      this.find(key.value.trim());
    };
    this.wrong = h("p", { class: "wrong", role: "alert", hidden: true });
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "Find a client"),
      h(
        "form",
        { class: "row", onsubmit: find },
        field("Address or key", key, "grow"),
        h("p", { class: "field" }, h("button", { type: "submit", class: "primary" }, "Find")),
      ),
      this.wrong,
    );
  }

  find(key) {
    const target = `#clients/${encodeURIComponent(key)}`;
    if (location.hash.startsWith(`${target}?`)) this.page.refresh();
    else location.hash = target;
  }

  complain(problem) {
    this.wrong.textContent = plain(explain(problem), 400);
    this.wrong.hidden = false;
  }

  // `key` is the part of the URL after `#clients/`.
  open(key) {
    if (key !== (this.key ?? "")) replace(this.one);
    this.key = key || null;
    this.wrong.hidden = true;
  }

  async refresh() {
    const key = this.key;
    const [clients, client] = await Promise.all([
      get("clients", { sort: this.sort, limit: 50 }),
      key ? this.look(key) : null,
    ]);
    if (key !== this.key) {
      await this.refresh();
      return;
    }
    update(this.list, this.top(clients.clients));
    if (client) update(this.one, this.detail(client));
    else replace(this.one);
  }

  // Return what is known of a client; null where the key can be none.
  async look(key) {
    try {
      return await get("client", { key });
    } catch (problem) {
      if (problem.status !== 422) throw problem;
      this.complain(problem);
      return null;
    }
  }

  top(clients) {
    const near = ({ nearest }) => (nearest ? gauge(nearest, ruleAndLimit(nearest.rule, nearest.limit)) : "–");
    const state = ({ banned }) =>
      banned ? h("span", { class: "badge hot" }, "Banned") : h("span", { class: "faint" }, "–");
    return table(
      "Busiest clients of five minutes",
      [
        { title: "Client", cell: (client) => clientLink(client.key) },
        ...(clients.some(({ network }) => network)
          ? [{ title: "Network", cell: ({ network }) => (network ? stranger(network, 64) : "–") }]
          : []),
        { title: "Requests", number: true, cell: (client) => count(client.requests) },
        { title: "Refused", number: true, cell: (client) => warm(client.refused) },
        { title: "Nearest limit", wide: true, cell: near },
        { title: "State", cell: state },
      ],
      clients,
      "No client has been seen yet.",
      (client) => client.key,
    );
  }

  detail(client) {
    const { key, ban } = client;
    const act = (text, question, more) => change(this.page, text, question, more);
    const seen = ban || client.windows.length || client.refusals.length;
    const state = ban
      ? h("span", { class: "badge hot" }, "Banned")
      : h("span", { class: "badge" }, seen ? "Not banned" : "Never seen");
    const when = ([{ at }, times]) => [moment(at), times > 1 && h("span", { class: "faint" }, ` × ${count(times)}`)];
    return [
      h(
        "section",
        { class: "card", "aria-label": "This client" },
        h(
          "div",
          { class: "title" },
          h("h2", {}, stranger(key)),
          state,
          h(
            "span",
            { class: "buttons" },
            ban
              ? [act("Unban", () => askUnban(ban.target)), act("Change…", () => askBan(ban.target, ban))]
              : act("Ban…", () => askBan(key), { class: "danger" }),
          ),
        ),
        ban && this.banned(ban),
        client.windows.length
          ? h(
              "div",
              { class: "windows" },
              client.windows.map((window) => this.window(window)),
            )
          : h("p", { class: "empty" }, seen ? "This client has used no limit." : "This client is unknown."),
      ),
      table(
        "Latest refusals",
        [
          { title: "When", cell: when },
          { title: "Reason", cell: ([refusal]) => words(refusal.reason, 60) },
          { title: "Rule", cell: ([refusal]) => ruleAndLimit(refusal.rule, refusal.limit ?? "") },
          { title: "Route", wide: true, cell: ([refusal]) => stranger(refusal.route ?? "–", 60) },
          { title: "Status", number: true, wide: true, cell: ([refusal]) => refusal.status ?? "–" },
          { title: "Retry after", number: true, cell: ([refusal]) => duration(refusal.retry_after_s) },
        ],
        folded(client.refusals),
        "No refusal of this client is recorded.",
      ),
    ];
  }

  banned(ban) {
    const until = ban.until_at
      ? `until ${moment(ban.until_at)}, ${duration(ban.until_at - now())} from now`
      : "until it is removed";
    return h(
      "dl",
      { class: "facts" },
      h("dt", {}, "Ban"),
      h("dd", {}, stranger(ban.target, 60), ` ${until}; level ${ban.level}; by `, stranger(ban.policy, 60)),
      h("dt", {}, "Reason"),
      h("dd", {}, ban.reason ? words(ban.reason, 200) : "–"),
    );
  }

  window(window) {
    const { used, amount, remaining } = window;
    const spent = `${count(used)} of ${count(amount)} spent, ${count(remaining)} left`;
    const empty = window.reset_after_s ? `; empty in ${duration(window.reset_after_s)}` : "";
    const name = `${plain(window.rule, 40)} ${plain(window.limit, 40)}`;
    return h(
      "section",
      { class: "window", "aria-label": name },
      h("h3", {}, stranger(window.rule, 40), " ", h("span", { class: "faint" }, plain(window.limit, 40))),
      window.fallback &&
        h("p", { class: "small" }, "Fall-back limit: this worker does not know the client's own limit."),
      h(
        "p",
        { class: "spent" },
        meter(used, amount, spent),
        h("span", { class: "figure" }, `${count(used)} / ${count(amount)}`),
      ),
      window.slices.length > 0 && [slices(window, `${spent}; ${between(window.slices)}`), asTable(name, window.slices)],
      h("p", { class: "small" }, `${count(remaining)} left; ${again(window)}${empty}`),
    );
  }
}

const between = (found) => `${found.length} slices from ${moment(found[0].start_at)} to ${moment(found.at(-1).end_at)}`;

function asTable(name, found) {
  const rows = found.toReversed().map((slice) => [slice.start_at, moment(slice.start_at), count(slice.count)]);
  const place = { class: "scroll", role: "region", tabindex: "0", "aria-label": `${name}, slices as a table` };
  const table = numbers(`${name}, newest first`, ["From", "Spent"], rows);
  return h("details", {}, h("summary", {}, "As a table"), h("div", place, table));
}

function again({ retry_after_s: wait, more_after_s: more, refuses }) {
  if (wait) return `${refuses ? "" : "would be "}refused for another ${duration(wait)}`;
  return more ? `more in ${duration(more)}` : "nothing spent";
}
