// The view of clients: the busiest, and one of them in detail.

import { h, table, stranger, words, update, replace, plain, mark, clientLink, ruleAndLimit, field, TYPED } from "./dom.js";
import { call, get } from "./api.js";
import { gauge, meter, slices, warm } from "./charts.js";
import { askBan, askExtend, askReset, askUnban, change, explain } from "./dialogs.js";
import { count, duration, moment, now } from "./format.js";

const SORTS = [["requests", "Requests"], ["refused", "Refusals"], ["nearness", "Nearness to a limit"]];
const KINDS = [["key", "Address or key"], ["header", "Header"], ["cookie", "Cookie"], ["query", "Query parameter"]];

// Equal neighbours among refusals become one, with how many they are.
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
    const order = h("select", { id: mark("sort"), onchange: () => { this.sort = order.value; page.refresh(); } }, SORTS.map(([value, text]) => h("option", { value }, text)));
    this.list = h("div", {});
    this.one = h("div", { class: "stack", "aria-live": "off" });
    this.element = h("div", { class: "stack" }, h("h2", { class: "unseen" }, "Clients"), this.search(), this.one,
      h("div", {}, field("Order by", order, "inline"), this.list));
  }

  search() {
    const [kindId, nameId, valueId] = [mark("kind"), mark("name"), mark("value")];
    const kind = h("select", { id: kindId, onchange: () => fit() }, KINDS.map(([value, text]) => h("option", { value }, text)));
    const name = h("input", { id: nameId, maxlength: 1024, ...TYPED });
    const value = h("input", { id: valueId, required: true, maxlength: 1024, ...TYPED, placeholder: "203.0.113.7" });
    const named = field("Its name", name);
    const label = h("label", { for: valueId }, "Client");
    const fit = () => {
      named.hidden = kind.value === "key";
      name.required = !named.hidden;
      name.placeholder = kind.value === "header" ? "X-API-Key" : "";
      label.textContent = named.hidden ? "Client" : "Its value";
      value.placeholder = named.hidden ? "203.0.113.7" : "";
    };
    fit();
    this.wrong = h("p", { class: "wrong", role: "alert", hidden: true });
    return h("section", { class: "card" }, h("h2", {}, "Find a client"),
      h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); this.find(kind.value, name.value, value.value); } },
        field("By", kind), named, h("p", { class: "field grow" }, label, value),
        h("p", { class: "field" }, h("button", { type: "submit", class: "primary" }, "Find"))), this.wrong);
  }

  async find(kind, name, value) {
    this.wrong.hidden = true;
    try {
      // The value of a header may be a secret: it goes into a body, which no access log keeps, and comes back as a digest.
      const key = kind === "key" ? value.trim() : (await call("POST", "keys/find", { kind, name, value })).key;
      const target = `#clients/${encodeURIComponent(key)}`;
      if (location.hash.startsWith(`${target}?`)) await this.page.refresh();
      else location.hash = target;
    } catch (problem) {
      this.complain(problem);
    }
  }

  complain(problem) {
    this.wrong.textContent = plain(explain(problem), 400);
    this.wrong.hidden = false;
  }

  // The rest of the address after `#clients/` is the client.
  open(key) {
    if (key !== (this.key ?? "")) replace(this.one);
    this.key = key || null;
    this.wrong.hidden = true;
  }

  async refresh() {
    const key = this.key;
    const [clients, client] = await Promise.all([
      get("clients", { sort: this.sort, limit: 50 }),
      key ? get("client", { key }).catch((problem) => { if (problem.status === 422 || problem.status === 404) this.complain(problem); else throw problem; }) : null,
    ]);
    if (key !== this.key) { await this.refresh(); return; }
    update(this.list, this.top(clients.clients));
    if (client) update(this.one, this.detail(client));
    else replace(this.one);
  }

  top(clients) {
    return table("Busiest clients of five minutes", [
      { title: "Client", cell: (client) => clientLink(client.key) },
      { title: "Requests", number: true, cell: (client) => count(client.requests) },
      { title: "Refused", number: true, cell: (client) => warm(client.refused) },
      { title: "Nearest limit", wide: true, cell: ({ nearest }) => (nearest ? gauge(nearest, ruleAndLimit(nearest.rule, nearest.limit)) : "–") },
      { title: "State", cell: (client) => (client.banned ? h("span", { class: "badge hot" }, "Banned") : h("span", { class: "faint" }, "–")) },
    ], clients, "No client has been seen yet.", (client) => client.key);
  }

  detail(client) {
    const { key, ban } = client;
    const act = (text, question, more) => change(this.page, text, question, key, more);
    const seen = ban || client.windows.length || client.refusals.length;
    return [
      h("section", { class: "card", "aria-label": "This client" },
        h("div", { class: "title" }, h("h2", {}, stranger(key)), ban ? h("span", { class: "badge hot" }, "Banned") : h("span", { class: "badge" }, seen ? "Not banned" : "Never seen"),
          h("span", { class: "buttons" }, ban ? [act("Unban", askUnban), act("Extend…", askExtend)] : act("Ban…", askBan, { class: "danger" }), act("Forget counts…", askReset))),
        !this.page.mayChange && h("p", { class: "faint" }, "This session may look, and may not change anything."),
        ban && h("dl", { class: "facts" },
          h("dt", {}, "Ban"), h("dd", {}, ban.until_at ? `until ${moment(ban.until_at)}, ${duration(ban.until_at - now())} from now` : "until it is taken back",
            `; level ${ban.level}; by `, stranger(ban.policy, 60)), h("dt", {}, "Reason"), h("dd", {}, ban.reason ? words(ban.reason, 200) : "–")),
        client.windows.length ? h("div", { class: "windows" }, client.windows.map((window) => this.window(window)))
          : h("p", { class: "empty" }, seen ? "Nothing is spent in any window of this client." : "Nothing is known of this client.")),
      table("Last refusals", [
        { title: "When", cell: ([refusal, times]) => [moment(refusal.at), times > 1 && h("span", { class: "faint" }, ` × ${count(times)}`)] },
        { title: "Reason", cell: ([refusal]) => words(refusal.reason, 60) },
        { title: "Rule", cell: ([refusal]) => ruleAndLimit(refusal.rule, refusal.limit ?? "") },
        { title: "Route", wide: true, cell: ([refusal]) => stranger(refusal.route ?? "–", 60) },
        { title: "Status", number: true, wide: true, cell: ([refusal]) => refusal.status ?? "–" },
        { title: "Retry after", number: true, cell: ([refusal]) => duration(refusal.retry_after_s) },
      ], folded(client.refusals), "No refusal of this client is remembered."),
    ];
  }

  window(window) {
    const again = window.retry_after_s ? `${window.refuses ? "" : "would be "}refused for another ${duration(window.retry_after_s)}`
      : window.more_after_s ? `more in ${duration(window.more_after_s)}` : "nothing spent";
    const words = `${count(window.used)} of ${count(window.amount)} spent, ${count(window.remaining)} left`;
    return h("section", { class: "window", "aria-label": `${plain(window.rule, 40)} ${plain(window.limit, 40)}` },
      h("h3", {}, stranger(window.rule, 40), " ", h("span", { class: "faint" }, plain(window.limit, 40))),
      window.fallback && h("p", { class: "small" }, "These are the rule's fall-back limits: this worker does not know those of the client."),
      h("p", { class: "spent" }, meter(window.used, window.amount, words), h("span", { class: "figure" }, `${count(window.used)} / ${count(window.amount)}`)),
      window.slices?.length > 0 && slices(window, `${words}; ${window.slices.length} slices from ${moment(window.slices[0].start_at)} to ${moment(window.slices.at(-1).end_at)}`),
      h("p", { class: "small" }, `${count(window.remaining)} left; ${again}${window.reset_after_s ? `; empty in ${duration(window.reset_after_s)}` : ""}`));
  }
}
