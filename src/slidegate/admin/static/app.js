// The page: the session, the tabs, the theme, and which view is shown.

import { h, replace, announce, plain, mark, held, write, field } from "./dom.js";
import { call, get, onSessionEnd } from "./api.js";
import { explain } from "./dialogs.js";
import { clock, now } from "./format.js";
import { NowView } from "./now.js";
import { ClientsView } from "./clients.js";
import { ShadowView } from "./shadow.js";
import { BansView } from "./bans.js";
import { ConfigView } from "./config.js";

const VIEWS = [["now", "Now", NowView], ["clients", "Clients", ClientsView], ["shadow", "Shadow", ShadowView], ["bans", "Bans & lists", BansView], ["config", "Configuration", ConfigView]];
const WINDOWS = ["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"];
const STATES = { live: "Live", held: "Paused", waiting: "Connecting", lost: "No connection" };
const EVERY_MS = 2000;
const HELD_MS = 500;
const THEMES = ["system", "light", "dark"];
const part = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.window = "5m";
    this.role = null;
    this.views = {};
    this.tabs = VIEWS.map(([name, title]) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, class: "tab", "aria-selected": "false", tabindex: "-1", onclick: () => this.go(name),
    }, title));
    part("tabs").append(...this.tabs);
    part("tabs").addEventListener("keydown", (event) => this.rove(event));
    this.choices = WINDOWS.map((window) => h("input", { type: "radio", name: "window", value: window, onchange: () => this.go(this.path, window) }));
    part("range").append(h("legend", { class: "unseen" }, "Window of time"), ...this.choices.map((choice) => h("label", {}, choice, h("span", {}, choice.value))));
    part("leave").addEventListener("click", () => this.leave());
    document.addEventListener("visibilitychange", () => this.role && this.poll());
    onSessionEnd(() => this.login("Your session has ended. Sign in again."));
    window.addEventListener("hashchange", () => this.role && this.route());
    themes();
  }

  get mayChange() { return this.role === "full"; }

  async begin() {
    try {
      this.enter(await get("session"));
    } catch (problem) {
      this.login(problem.status === 401 ? "" : explain(problem));
    }
  }

  enter(session) {
    this.role = session.role;
    part("tabs").hidden = false;
    part("leave").hidden = false;
    part("leave").textContent = this.mayChange ? "Sign out" : "Sign out (read-only)";
    this.views = {};
    this.tell("waiting");
    this.route();
  }

  login(why = "") {
    this.role = null;
    clearTimeout(this.timer);
    for (const dialog of document.querySelectorAll("dialog")) dialog.close();
    for (const id of ["tabs", "leave", "range", "banner"]) part(id).hidden = true;
    part("state").textContent = "";
    const wrong = h("p", { class: "wrong", role: "alert", hidden: !why }, plain(why, 400));
    const input = h("input", { id: mark("token"), name: "token", type: "password", required: true, maxlength: 1024, autocomplete: "current-password" });
    const button = h("button", { type: "submit", class: "primary" }, "Sign in");
    const form = h("form", { class: "card login" }, h("h2", {}, "Sign in"), field("Token", input), wrong, h("p", {}, button));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        this.enter(await call("POST", "session", { token: input.value }));
      } catch (problem) {
        wrong.textContent = problem.status === 401 ? "This is not the token." : plain(explain(problem), 400);
        wrong.hidden = false;
        input.value = "";
        input.focus();
      } finally {
        button.disabled = false;
      }
    });
    part("content").removeAttribute("role");
    part("content").removeAttribute("aria-labelledby");
    replace(part("content"), form);
    input.focus();
  }

  async leave() {
    try {
      await call("DELETE", "session");
      this.login("You have signed out.");
    } catch (problem) {
      if (problem.status !== 401) announce(explain(problem));
    }
  }

  route() {
    const [asked, query] = location.hash.slice(1).split("?");
    const path = asked || "now";
    const { window } = Object.fromEntries(new URLSearchParams(query));
    if (WINDOWS.includes(window)) this.window = window;
    this.path = path;
    // Links within the page say nothing of the window, and keep it.
    history.replaceState(null, "", `#${path}?window=${this.window}`);
    for (const choice of this.choices) choice.checked = choice.value === this.window;
    const [name, ...rest] = path.split("/");
    const index = Math.max(0, VIEWS.findIndex(([known]) => known === name));
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

  // Ask again and again while somebody sees the page, and not while somebody is at work in it.
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden || !this.role) return;
    const busy = held(part("content")) && part("content").querySelector("td, dd") !== null;
    if (busy) this.tell("held");
    else await this.attempt();
    clearTimeout(this.timer);
    if (this.role) this.timer = setTimeout(() => this.poll(), busy ? HELD_MS : this.view.everyMs ?? EVERY_MS);
  }

  // Show what somebody has asked for, whatever is selected.
  refresh() {
    document.getSelection()?.removeAllRanges();
    return this.attempt();
  }

  // One question at a time: on a slow connection they would come faster than answers.
  async attempt() {
    if (this.busy) return;
    const { view } = this;
    this.busy = true;
    this.warned = false;
    view.element.setAttribute("aria-busy", "true");
    try {
      await view.refresh();
      if (view === this.view) this.tell("live");
      if (view === this.view && !this.warned) { this.seenAt = now(); part("banner").hidden = true; }
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (problem.status !== 401 && view === this.view) this.warn(explain(problem));
      if (problem.status === 0) this.tell("lost");
    } finally {
      if (view === this.view) this.busy = false;
      view.element.removeAttribute("aria-busy");
    }
  }

  warn(text) {
    const since = this.seenAt ? ` These stats are of ${clock(this.seenAt)}.` : "";
    this.warned = true;
    write(part("banner"), plain(text, 400) + since);
    part("banner").hidden = false;
  }

  tell(state) {
    part("state").dataset.state = state;
    write(part("state"), STATES[state]);
  }

  rove(event) {
    const at = this.tabs.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const target = event.key === "Home" ? 0 : event.key === "End" ? this.tabs.length - 1 : step && (at + step + this.tabs.length) % this.tabs.length;
    if (at < 0 || target === undefined) return;
    event.preventDefault();
    this.tabs[target].focus();
    this.tabs[target].click();
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// A browser may forbid a page to keep anything; then the choice lasts as long as the page.
function remember(name, value) {
  try {
    localStorage.setItem(`slidegate.${name}`, value);
  } catch { /* nothing is kept */ }
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
    replace(button, "Theme", h("span", { class: "wide" }, `: ${theme}`));
    button.setAttribute("aria-label", `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    remember("theme", theme);
    show();
  });
  show();
}

new Page().begin();
