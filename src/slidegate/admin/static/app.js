// The page: tabs, theme, routing between views, and polling.

import { get } from "./api.js";
import { BansView } from "./bans.js";
import { ClientsView } from "./clients.js";
import { ConfigView } from "./config.js";
import { explain } from "./dialogs.js";
import { h, held, plain, replace, write } from "./dom.js";
import { clock, now } from "./format.js";
import { NowView } from "./now.js";
import { ShadowView } from "./shadow.js";

const VIEWS = [
  ["now", "Now", NowView],
  ["clients", "Clients", ClientsView],
  ["shadow", "Shadow", ShadowView],
  ["bans", "Bans & lists", BansView],
  ["config", "Configuration", ConfigView],
];
const WINDOWS = ["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"];
const STATES = {
  live: "Live",
  held: "Paused",
  waiting: "Connecting",
  lost: "No connection",
  failed: "Failed",
  out: "Signed out",
};
const EVERY_MS = 2000;
const HELD_MS = 500;
const THEMES = ["system", "light", "dark"];
const part = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.window = "5m";
    this.role = null;
    this.views = {};
    this.tabs = VIEWS.map(([name, title]) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${name}`,
          class: "tab",
          "aria-selected": "false",
          tabindex: "-1",
          onclick: () => this.go(name),
        },
        title,
      ),
    );
    part("tabs").append(...this.tabs);
    part("tabs").addEventListener("keydown", (event) => this.rove(event));
    this.choices = WINDOWS.map((window) =>
      h("input", { type: "radio", name: "window", value: window, onchange: () => this.go(this.path, window) }),
    );
    part("range").append(
      h("legend", { class: "unseen" }, "Time window"),
      ...this.choices.map((choice) => h("label", {}, choice, h("span", {}, choice.value))),
    );
    document.addEventListener("visibilitychange", () => this.poll());
    window.addEventListener("hashchange", () => this.route());
    themes();
    this.setState("waiting");
    this.route();
  }

  get mayChange() {
    return this.role === "full";
  }

  route() {
    const [asked, query] = location.hash.slice(1).split("?");
    const path = asked || "now";
    const { window } = Object.fromEntries(new URLSearchParams(query));
    if (WINDOWS.includes(window)) this.window = window;
    this.path = path;
    // Links within the page omit the window, so add the current one.
    history.replaceState(null, "", `#${path}?window=${this.window}`);
    for (const choice of this.choices) choice.checked = choice.value === this.window;
    const [name, ...rest] = path.split("/");
    const index = Math.max(
      0,
      VIEWS.findIndex(([known]) => known === name),
    );
    const [view, title, View] = VIEWS[index];
    this.tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", place === index);
      tab.tabIndex = place === index ? 0 : -1;
      if (place === index) tab.setAttribute("aria-controls", "content");
      else tab.removeAttribute("aria-controls");
    });
    this.tabs[index].scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = `${title} – slidegate`;
    this.view = this.views[view] ??= new View(this);
    const content = part("content");
    content.setAttribute("role", "tabpanel");
    content.setAttribute("aria-labelledby", `tab-${view}`);
    if (content.firstElementChild !== this.view.element) replace(content, this.view.element);
    part("range").hidden = !this.view.ranged;
    this.busy = false;
    if (this.view.open) this.view.open(decoded(rest.join("/")));
    this.poll();
  }

  go(path, window = this.window) {
    location.hash = `${path}?window=${window}`;
  }

  // Poll while the page is visible, and pause while the user interacts with it.
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden || this.signedOut) return;
    const busy = held(part("content")) && part("content").querySelector("td, dd") !== null;
    if (busy) this.setState("held");
    else await this.attempt();
    clearTimeout(this.timer);
    if (!this.signedOut) this.timer = setTimeout(() => this.poll(), busy ? HELD_MS : (this.view.everyMs ?? EVERY_MS));
  }

  // Refresh after an action of the user, even if text is selected.
  refresh() {
    document.getSelection()?.removeAllRanges();
    return this.attempt();
  }

  // One request at a time: on a slow connection requests would pile up.
  async attempt() {
    if (this.busy) return;
    const { view } = this;
    this.busy = true;
    this.warned = false;
    view.element.setAttribute("aria-busy", "true");
    try {
      this.role ??= (await get("user")).role;
      part("role").hidden = this.mayChange;
      await view.refresh();
      if (view === this.view) this.setState("live");
      if (view === this.view && !this.warned) {
        this.seenAt = now();
        part("banner").hidden = true;
      }
    } catch (problem) {
      if (view === this.view) this.fail(problem);
    } finally {
      if (view === this.view) this.busy = false;
      view.element.removeAttribute("aria-busy");
    }
  }

  // Show the problem. Only an invalid token stops polling, because each request would open a password dialog.
  fail(problem) {
    const [state, text] = described(problem);
    this.signedOut = state === "out";
    this.setState(state);
    this.warn(text);
  }

  warn(text) {
    const since = this.seenAt ? ` These stats are of ${clock(this.seenAt)}.` : "";
    this.warned = true;
    write(part("banner"), plain(text, 400) + since);
    part("banner").hidden = false;
  }

  setState(state) {
    part("state").dataset.state = state;
    write(part("state"), STATES[state]);
  }

  rove(event) {
    const at = this.tabs.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const target =
      event.key === "Home"
        ? 0
        : event.key === "End"
          ? this.tabs.length - 1
          : step && (at + step + this.tabs.length) % this.tabs.length;
    if (at < 0 || target === undefined) return;
    event.preventDefault();
    this.tabs[target].focus();
    this.tabs[target].click();
  }
}

function described(problem) {
  if (problem.status === 401) return ["out", "The token is no longer valid. Reload the page to sign in."];
  if (problem.status !== undefined) return [problem.status ? "failed" : "lost", explain(problem)];
  console.error(problem);
  return ["failed", `This view has failed (${problem}). Retrying.`];
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// The browser may block localStorage; then the choice lasts until the page is closed.
function remember(name, value) {
  try {
    localStorage.setItem(`slidegate.${name}`, value);
  } catch {
    /* storage is blocked */
  }
}

function remembered(name, known) {
  try {
    const value = localStorage.getItem(`slidegate.${name}`);
    return known.includes(value) ? value : null;
  } catch {
    return null;
  }
}

function themes() {
  const button = part("theme");
  let theme = remembered("theme", THEMES) ?? "system";
  const show = () => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    replace(button, "Theme", h("span", { class: "roomy" }, `: ${theme}`));
    button.setAttribute("aria-label", `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    remember("theme", theme);
    show();
  });
  show();
}

new Page();
