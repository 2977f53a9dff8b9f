// The page: the session, the tabs, the theme, and which view is shown.

import { h, replace, announce, plain, mark } from "./dom.js";
import { call, get, onSessionEnd, setCsrf } from "./api.js";
import { Live } from "./live.js";
import { explain } from "./dialogs.js";
import { clock, now } from "./format.js";
import { NowView } from "./now.js";
import { ClientsView } from "./clients.js";
import { ShadowView } from "./shadow.js";
import { BansView } from "./bans.js";
import { ConfigView } from "./config.js";

const VIEWS = [["now", "Now", NowView], ["clients", "Clients", ClientsView], ["shadow", "Shadow", ShadowView], ["bans", "Bans & lists", BansView], ["config", "Configuration", ConfigView]];
const STATES = { live: "Live", polling: "Polling", waiting: "Connecting", lost: "No connection" };
const THEMES = ["system", "light", "dark"];
const part = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.window = remembered("window", ["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"]) ?? "5m";
    this.role = null;
    this.views = {};
    this.frame = null;
    this.live = new Live((frame) => this.take(frame), (state, problem) => this.tell(state, problem));
    this.tabs = VIEWS.map(([name, title]) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, class: "tab", "aria-selected": "false", tabindex: "-1", onclick: () => { location.hash = name; },
    }, title));
    part("tabs").append(...this.tabs);
    part("tabs").addEventListener("keydown", (event) => this.rove(event));
    part("leave").addEventListener("click", () => this.leave());
    onSessionEnd(() => this.login("Your session has ended. Sign in again."));
    window.addEventListener("hashchange", () => this.role && this.route());
    themes();
  }

  get mayChange() { return this.role === "full"; }

  async begin() {
    try {
      this.enter(await get("session"));
    } catch (problem) {
      if (problem.status === 401) this.login();
      else this.login(explain(problem));
    }
  }

  enter(session) {
    this.role = session.role;
    setCsrf(session.csrf);
    part("tabs").hidden = false;
    part("leave").hidden = false;
    part("leave").textContent = this.mayChange ? "Sign out" : "Sign out (read-only)";
    this.views = {};
    this.route();
    this.live.start(this.window);
  }

  login(why = "") {
    this.role = null;
    this.frame = null;
    this.live.stop();
    setCsrf("");
    for (const dialog of document.querySelectorAll("dialog")) dialog.close();
    part("tabs").hidden = true;
    part("leave").hidden = true;
    part("banner").hidden = true;
    part("state").textContent = "";
    const id = mark("token");
    const wrong = h("p", { class: "wrong", role: "alert", hidden: !why }, plain(why, 400));
    const input = h("input", { id, name: "token", type: "password", required: true, maxlength: 1024, autocomplete: "current-password" });
    const button = h("button", { type: "submit", class: "primary" }, "Sign in");
    const form = h("form", { class: "card login" }, h("h2", {}, "Sign in"), h("p", { class: "field" }, h("label", { for: id }, "Token"), input), wrong, h("p", {}, button));
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
    const [name, ...rest] = location.hash.slice(1).split("/");
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
    this.busy = false;
    if (this.view.open) this.attempt(() => this.view.open(decoded(rest.join("/"))));
    else if (this.view.refresh) this.refresh();
    else if (this.frame) this.view.show(this.frame);
    else replace(content, this.view.element);
  }

  choose(window) {
    this.window = window;
    remember("window", window);
    this.live.start(window);
  }

  take(frame) {
    this.frame = frame;
    this.seenAt = now();
    if (frame.problem) this.warn(frame.problem.detail || frame.problem.title);
    else part("banner").hidden = true;
    if (this.view.show) { if (frame.stats) this.view.show(frame); } else this.refresh();
  }

  refresh() {
    return this.view.refresh ? this.attempt(() => this.view.refresh()) : undefined;
  }

  // One question at a time: on a slow connection frames come faster than answers.
  async attempt(action) {
    if (this.busy) return;
    const { view } = this;
    this.busy = true;
    view.element.setAttribute("aria-busy", "true");
    try {
      await action();
      if (view === this.view && this.warned) { this.warned = false; part("banner").hidden = true; }
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      if (problem.status !== 401 && view === this.view) { this.warned = true; this.warn(explain(problem)); }
    } finally {
      if (view === this.view) this.busy = false;
      view.element.removeAttribute("aria-busy");
    }
  }

  warn(text) {
    const since = this.seenAt ? ` These figures are of ${clock(this.seenAt)}.` : "";
    const words = plain(text, 400) + since;
    if (part("banner").textContent !== words) part("banner").textContent = words;
    part("banner").hidden = false;
  }

  tell(state, problem) {
    const place = part("state");
    if (place.dataset.state !== state) {
      place.dataset.state = state;
      place.textContent = STATES[state];
    }
    if (state === "lost" && problem?.status !== 401) this.warn(problem ? explain(problem) : "Nothing has come from the server for a while.");
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
