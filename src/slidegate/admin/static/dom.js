// Makes elements. Text goes in as text, never as markup: nothing here, or anywhere in this folder, parses HTML.

const NAMESPACE = "http://www.w3.org/2000/svg";
const MOST_SHOWN = 120;
// Control characters, marks that turn the direction of text, and characters without width or shape.
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\ufff9-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
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

export const svg = (tag, properties, ...children) => fill(document.createElementNS(NAMESPACE, tag), properties, children);

export function replace(element, ...children) {
  element.textContent = "";
  add(element, children);
  return element;
}

// Return a text of a stranger so that it can do no harm on a screen: short, and with everything unseen spelt out.
export function plain(text, most = MOST_SHOWN) {
  const whole = String(text ?? "");
  // Two units of UTF-16 may be one character: the cut must not leave half of one.
  const kept = whole.length > most ? whole.slice(0, most).replace(/[\ud800-\udbff]$/, "") : whole;
  const seen = kept.replace(UNSEEN, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return whole.length > most ? `${seen}… (${whole.length.toLocaleString("en")} characters)` : seen;
}

// A text of a stranger as an element, which keeps its direction to itself.
export const stranger = (text, most) => h("bdi", { class: "stranger" }, plain(text, most));

// The same for a sentence, in the letters of the page.
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

// A table with a caption. A column is {title, number, wide, cell(row)}; `wide` ones are left out on a narrow screen.
export function table(caption, columns, rows, empty, keep = false) {
  const title = mark("caption");
  const classes = (column) => [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;
  const heads = columns.map((column) => h("th", { scope: "col", class: classes(column) }, column.title));
  const lines = rows.map((row) => h("tr", {}, columns.map((column, place) =>
    h(place ? "td" : "th", { class: classes(column), scope: place ? null : "row" }, column.cell(row)))));
  if (!rows.length && !keep) return h("section", { class: "card" }, h("h2", {}, caption), h("p", { class: "empty" }, empty));
  return h("section", { class: "card" },
    h("div", { class: "scroll", role: "region", tabindex: "0", "aria-labelledby": title },
      h("table", {}, h("caption", { id: title }, caption), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, lines))));
}

// Put a new copy of a part of the page in place of the old one, unless somebody is at work in it.
export function renew(place, ...children) {
  const busy = place.contains(document.activeElement) && document.activeElement.matches("input, select, summary, button, .scroll");
  if (busy) keepFocus(place, children);
  else replace(place, ...children);
}

// The element that had the focus has a twin in the new copy, at the same place among its like.
function keepFocus(place, children) {
  const active = document.activeElement;
  const like = active.localName + (active.className ? `.${active.className.trim().split(/\s+/).join(".")}` : "");
  const number = [...place.querySelectorAll(like)].indexOf(active);
  const scrolled = active.scrollLeft;
  replace(place, ...children);
  const twin = place.querySelectorAll(like)[number];
  twin?.focus({ preventScroll: true });
  if (twin && scrolled) twin.scrollLeft = scrolled;
}
