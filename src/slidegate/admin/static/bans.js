// The view of bans, lists and events.

import { get } from "./api.js";
import { askBan, askRestore, askUnban, change } from "./dialogs.js";
import { button, clientLink, field, h, mark, plain, stranger, TYPED, table, update, words } from "./dom.js";
import { count, duration, moment, now } from "./format.js";

export class BansView {
  constructor(page) {
    Object.assign(this, { page, query: "", pages: [""] });
    this.ban = change(page, "Ban…", () => askBan(), { class: "danger" });
    this.bans = h("div", {});
    this.rest = h("div", { class: "stack" });
    this.element = h(
      "div",
      { class: "stack" },
      h("h2", { class: "unseen" }, "Bans and lists"),
      h(
        "form",
        { class: "card row", role: "search", "aria-label": "Bans", onsubmit: (event) => this.search(event) },
        field(
          "Target, reason or policy",
          h("input", { id: mark("search"), name: "q", type: "search", maxlength: 200, ...TYPED }),
          "grow",
        ),
        h("p", { class: "field" }, h("button", { type: "submit" }, "Search")),
        h("p", { class: "field" }, this.ban),
      ),
      this.bans,
      this.rest,
    );
  }

  search(event) {
    event.preventDefault();
    this.query = event.target.elements.q.value;
    this.pages = [""];
    this.page.refresh();
  }

  turn(cursor) {
    if (cursor === null) this.pages.pop();
    else this.pages.push(cursor);
    this.page.refresh();
  }

  async refresh() {
    const [bans, limits, lists, events] = await Promise.all([
      get("bans", { cursor: this.pages.at(-1), limit: 50, q: this.query }),
      get("limits"),
      get("lists"),
      get("events", { limit: 100 }),
    ]);
    this.ban.disabled = !this.page.mayChange;
    update(this.bans, this.inForce(bans));
    update(this.rest, this.limits(limits.limits), this.lists(lists.lists), this.events(events.events));
  }

  inForce({ bans, next, matching, total }) {
    const act = (text, ban, question) =>
      change(this.page, text, question, {
        class: "slim",
        "aria-label": `${text.replace("…", "")} ${plain(ban.target, 60)}`,
      });
    const ends = (ban) =>
      h("span", { class: "span", title: moment(ban.until_at) }, duration(Math.max(0, ban.until_at - now())));
    const caption = this.query ? `${count(matching)} of ${count(total)} bans` : `Active bans: ${count(total)}`;
    const found = table(
      caption,
      [
        { title: "Target", cell: (ban) => clientLink(ban.target) },
        { title: "Reason", cell: (ban) => words(ban.reason || "–", 120) },
        { title: "Banned by", wide: true, cell: (ban) => stranger(ban.policy, 40) },
        { title: "Level", number: true, wide: true, cell: (ban) => ban.level },
        { title: "Since", wide: true, cell: (ban) => moment(ban.since_at) },
        { title: "Ends in", cell: (ban) => (ban.until_at ? ends(ban) : "never") },
        {
          title: "Actions",
          wide: true,
          cell: (ban) =>
            h(
              "span",
              { class: "buttons" },
              act("Unban", ban, () => askUnban(ban.target)),
              act("Change…", ban, () => askBan(ban.target, ban)),
            ),
        },
      ],
      bans,
      this.query ? "No ban matches." : "No client is banned.",
      (ban) => ban.target,
    );
    return [
      found,
      (next || this.pages.length > 1) &&
        h(
          "nav",
          { class: "pages", "aria-label": "Pages of bans" },
          button("Newer", () => this.turn(null), { disabled: this.pages.length === 1 }),
          h("span", { class: "faint" }, `Page ${this.pages.length}`),
          button("Older", () => this.turn(next), { disabled: !next }),
        ),
    ];
  }

  limits(limits) {
    return table(
      "Changed limits",
      [
        { title: "Limit", cell: (limit) => stranger(limit.name, 60) },
        { title: "Changed to", cell: (limit) => plain(limit.limit, 60) },
        { title: "Reason", cell: (limit) => words(limit.reason || "–", 120) },
        { title: "Changed by", wide: true, cell: (limit) => stranger(limit.by, 40) },
        {
          title: "Ends in",
          cell: (limit) =>
            h("span", { class: "span", title: moment(limit.until_at) }, duration(Math.max(0, limit.until_at - now()))),
        },
        {
          title: "Actions",
          wide: true,
          cell: (limit) =>
            change(this.page, "Restore", () => askRestore(limit.name), {
              class: "slim",
              "aria-label": `Restore ${plain(limit.name, 60)}`,
            }),
        },
      ],
      limits,
      'Every limit is as configured in code. The admin API and "slidegate limits set" change one temporarily.',
      (limit) => limit.name,
    );
  }

  lists(lists) {
    const tones = { rejected: "hot" };
    const state = (list) =>
      h(
        "span",
        { class: `badge ${tones[list.status] ?? ""}`, title: plain(list.message, 300) || null },
        plain(list.status, 20),
      );
    const path = (list) => list.path && h("span", { class: "faint" }, " ", stranger(list.path, 80));
    return table(
      "Lists",
      [
        { title: "List", cell: (list) => h("span", {}, stranger(list.name, 60), path(list)) },
        { title: "Kind", cell: (list) => (list.kind === "allowlist" ? "Allows" : "Blocks") },
        { title: "Entries", number: true, cell: (list) => count(list.entries) },
        { title: "Changed", wide: true, cell: (list) => moment(list.changed_at) },
        { title: "State", cell: state },
      ],
      lists,
      "No blocklist or allowlist is loaded.",
      (list) => `${list.middleware} ${list.kind} ${list.name}`,
    );
  }

  events(events) {
    return table(
      "Events",
      [
        { title: "When", cell: (event) => moment(event.at) },
        { title: "Event", cell: (event) => h("code", {}, plain(event.kind, 40)) },
        { title: "Message", cell: (event) => words(event.message) },
        { title: "Worker", wide: true, cell: (event) => stranger(event.worker, 40) },
      ],
      events,
      "No events since this worker was started.",
      (event) => event.seq,
    );
  }
}
