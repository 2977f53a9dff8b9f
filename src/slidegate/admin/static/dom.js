// Creates and updates elements. Text is inserted as text nodes: no code in this folder parses HTML.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MOST_SHOWN = 120;
// Control characters, bidirectional marks, lone surrogates, and invisible characters.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{DI}\p{Zl}\p{Zp}]/gu;

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "ontoggle"];

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "key" || HANDLERS.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) =>
  fill(document.createElementNS(NAMESPACE, tag), properties, children);

export function replace(element, ...children) {
  element.textContent = "";
  add(element, children);
  return element;
}

// Return untrusted text in a form safe to display: truncated, and with invisible characters escaped.
export function plain(text, most = MOST_SHOWN) {
  const whole = String(text ?? "");
  // Do not split a surrogate pair.
  const kept = whole.length > most ? whole.slice(0, most).replace(/[\ud800-\udbff]$/, "") : whole;
  const seen = kept.replace(UNSEEN, (unit) => `\\u${unit.codePointAt(0).toString(16).padStart(4, "0")}`);
  return whole.length > most ? `${seen}… (${whole.length.toLocaleString("en")} characters)` : seen;
}

// Return untrusted text as an element that isolates its text direction. An address is not wrapped.
const ADDRESS = /^[\da-f]*[.:][\da-f.:/]+$/i;
export const stranger = (text, most) =>
  h("bdi", { class: `stranger${ADDRESS.test(text) ? " address" : ""}` }, plain(text, most));

export const TYPED = { autocomplete: "off", spellcheck: "false" };
export const clientLink = (key, most = 64) =>
  h("a", { href: `#clients/${encodeURIComponent(key)}` }, stranger(key, most));
export const ruleAndLimit = (rule, limit) =>
  h("span", {}, stranger(rule, 40), h("span", { class: "faint" }, ` ${plain(limit, 40)}`));
export const button = (text, onclick, more) => h("button", { type: "button", onclick, ...more }, text);
export const field = (text, input, more = "") =>
  h("p", { class: `field ${more}` }, h("label", { for: input.id }, text), input);

// Return an untrusted sentence as an element, in the font of the page.
export const words = (text, most = 240) => h("bdi", { class: "stranger words" }, plain(text, most));

let announced;
export function announce(text) {
  const place = document.getElementById("announce");
  clearTimeout(announced);
  place.textContent = plain(text, 300);
  place.classList.add("shown");
  announced = setTimeout(() => place.classList.remove("shown"), 6000);
}

let marks = 0;
export const mark = (name) => `${name}-${++marks}`;

const NARROW = matchMedia("(max-width: 720px)");

// Return a table with a caption. A column is {title, number, wide, cell(row)}; on a narrow screen the `wide` columns
// move below the others of their row. `key(row)` identifies a row across updates.
export function table(caption, columns, rows, empty, key) {
  if (!rows.length) return h("section", { class: "card" }, h("h2", {}, caption), h("p", { class: "empty" }, empty));
  const wide = NARROW.matches ? columns.filter((column) => column.wide) : [];
  const beside = columns.filter((column) => !wide.includes(column));
  const number = (column) => column.number && "number";
  const heads = beside.map((column) => h("th", { scope: "col", class: number(column) }, column.title));
  const cells = (row) =>
    beside.map((column, place) =>
      h(place ? "td" : "th", { class: number(column), scope: place ? null : "row" }, column.cell(row)),
    );
  const below = (row) => wide.map((column) => h("div", {}, h("dt", {}, column.title), h("dd", {}, column.cell(row))));
  const lines = rows.map((row) => [
    h("tr", { key: key?.(row) }, cells(row)),
    wide.length > 0 &&
      h(
        "tr",
        { key: `below ${key?.(row)}`, class: "below" },
        h("td", { colspan: beside.length }, h("dl", {}, below(row))),
      ),
  ]);
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
      h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, lines)),
    ),
  );
}

// Return the numbers of a chart as a table. A row is [key, head, ...cells].
export function numbers(caption, heads, rows) {
  const head = (text, place) => h("th", { scope: "col", class: place > 0 && "number" }, text);
  const line = ([key, first, ...cells]) =>
    h(
      "tr",
      { key },
      h("th", { scope: "row" }, first),
      cells.map((cell) => h("td", { class: "number" }, cell)),
    );
  return h(
    "table",
    {},
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, heads.map(head))),
    h("tbody", {}, rows.map(line)),
  );
}

// A table with a filter and pages, both of which are kept when the rows change.
export class Listing {
  constructor(caption, columns, empty, key, most = 50) {
    Object.assign(this, { caption, columns, empty, key, most, rows: [], page: 0 });
    const id = mark("filter");
    this.filter = h("input", {
      id,
      type: "search",
      maxlength: 200,
      ...TYPED,
      oninput: () => {
        this.page = 0;
        this.draw();
      },
    });
    this.search = field(`Filter ${caption.toLowerCase()}`, this.filter, "inline");
    this.place = h("div", {});
    this.count = h("span", { class: "faint" });
    const turn = (text, by) =>
      button(text, () => {
        this.page += by;
        this.draw();
      });
    this.buttons = [turn("Previous", -1), turn("Next", 1)];
    this.pager = h(
      "nav",
      { class: "pages", "aria-label": `Pages of ${caption.toLowerCase()}`, hidden: true },
      this.buttons[0],
      this.count,
      this.buttons[1],
    );
    this.element = h("div", {}, this.search, this.place, this.pager);
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.toLowerCase();
    const found = wanted ? this.rows.filter((row) => this.key(row).toLowerCase().includes(wanted)) : this.rows;
    const pages = Math.max(1, Math.ceil(found.length / this.most));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    this.search.hidden = !wanted && this.rows.length <= this.most;
    this.pager.hidden = pages === 1;
    this.buttons[0].disabled = this.page === 0;
    this.buttons[1].disabled = this.page === pages - 1;
    write(this.count, `Page ${this.page + 1} of ${pages}`);
    const shown = found.slice(this.page * this.most, (this.page + 1) * this.most);
    const caption = wanted ? `${found.length} of ${this.rows.length}: ${this.caption.toLowerCase()}` : this.caption;
    update(this.place, table(caption, this.columns, shown, wanted ? "Nothing matches." : this.empty, this.key));
  }
}

// Return whether the user interacts with a part of the page: has selected text, presses a button, or has a dialog open.
export function held(place) {
  const selection = document.getSelection();
  const selects = selection && !selection.isCollapsed && selection.containsNode(place, true);
  return selects || place.querySelector(":active") !== null || document.querySelector("dialog[open]") !== null;
}

export const write = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

// Update a part of the page: matching elements are kept, and only differences are written.
export function update(place, ...children) {
  if (place.hasChildNodes() && held(place)) return;
  const fresh = document.createDocumentFragment();
  add(fresh, children);
  const active = document.activeElement;
  merge(place, fresh);
  // Moving a row drops its focus.
  if (active !== document.activeElement && active.isConnected) active.focus({ preventScroll: true });
}

const alike = (one, other) => one.nodeName === other.nodeName && one.key === other.key;

function merge(old, fresh) {
  const wanted = new Set(Array.from(fresh.childNodes, (child) => child.key));
  const keyed = new Map();
  for (const child of [...old.childNodes]) {
    if (child.key === undefined) continue;
    if (wanted.has(child.key)) keyed.set(child.key, child);
    else child.remove();
  }
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const kept = child.key === undefined ? next : keyed.get(child.key);
    if (!kept || !alike(kept, child)) {
      old.insertBefore(child, next);
      continue;
    }
    if (kept === next) next = next.nextSibling;
    else old.insertBefore(kept, next);
    become(kept, child);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function become(kept, fresh) {
  if (kept.nodeType === Node.TEXT_NODE) {
    if (kept.data !== fresh.data) kept.data = fresh.data;
    return;
  }
  for (const { name } of [...kept.attributes]) {
    // Keep <details> open that the user has opened.
    if (name !== "open" && !fresh.hasAttribute(name)) kept.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) if (kept.getAttribute(name) !== value) kept.setAttribute(name, value);
  for (const name of HANDLERS) kept[name] = fresh[name];
  merge(kept, fresh);
}
