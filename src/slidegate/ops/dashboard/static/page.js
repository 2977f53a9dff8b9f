// Refreshes the page: fetches it every two seconds and writes only what has changed. All works without it.

const EVERY_MS = 2000;
const NOTICE_MS = 15000;
let main, state;

// Nothing moves while text is selected or a button is pressed.
const busy = () => !getSelection().isCollapsed || main.querySelector(":active") !== null;

async function refresh() {
  if (document.hidden || busy()) return "Paused";
  const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(20000) });
  if (answer.status === 401) return "Signed out";
  if (!answer.ok) return `Failed (${answer.status})`;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (busy()) return "Paused";
  const focused = document.activeElement;
  localize(page.body);
  merge(main, page.getElementById("main"));
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  return "Live";
}

async function poll() {
  const status = await refresh().catch(() => "No connection");
  if (state.textContent !== status) state.textContent = status;
  state.dataset.state = status.split(" ")[0].toLowerCase();
  // Signed out, each further request would open a dialog.
  if (status !== "Signed out") setTimeout(poll, EVERY_MS);
}

const keyOf = (node) => node.dataset?.key;

// Makes the children of `old` like those of `fresh`. Elements are matched by data-key, others by their order.
function merge(old, fresh) {
  const keyed = new Map([...old.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const kept = keyOf(child) === undefined ? next : keyed.get(keyOf(child));
    if (!kept || kept.nodeName !== child.nodeName || keyOf(kept) !== keyOf(child)) {
      old.insertBefore(child, next);
      continue;
    }
    if (kept === next) next = next.nextSibling;
    else old.insertBefore(kept, next);
    update(kept, child);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function update(kept, fresh) {
  if (kept.nodeType === Node.TEXT_NODE && kept.data !== fresh.data) kept.data = fresh.data;
  if (kept.nodeType !== Node.ELEMENT_NODE || "keep" in kept.dataset) return;
  for (const { name, value } of fresh.attributes) if (kept.getAttribute(name) !== value) kept.setAttribute(name, value);
  for (const { name } of [...kept.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") kept.removeAttribute(name); // the reader has opened it
  }
  merge(kept, fresh);
}

// Shows times in the reader's time zone. The Swedish form is that of ISO 8601.
function localize(part) {
  for (const time of part.querySelectorAll("time")) time.textContent = new Date(time.dateTime).toLocaleString("sv");
}

addEventListener("DOMContentLoaded", () => {
  main = document.getElementById("main");
  state = document.getElementById("state");
  // A form in which something was typed stays as it is, and so does one that was refused. Its error goes with the next
  // input.
  for (const error of main.querySelectorAll("form .wrong")) error.closest("form").dataset.keep = "";
  main.addEventListener("input", ({ target }) => {
    if (target.form) target.form.dataset.keep = "";
    for (const error of document.querySelectorAll(".wrong, .banner[role=alert]")) error.remove();
  });
  addEventListener("click", ({ target }) => {
    if (target.closest(".pop")) return;
    for (const form of main.querySelectorAll(".pop[open]")) form.open = false;
  });
  document.getElementById("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
  localize(main);
  // The notice of a change goes after a while, and does not come back when the page is loaded again.
  const made = document.getElementById("made");
  if (made) {
    const address = new URL(location);
    address.searchParams.delete("done");
    history.replaceState(null, "", address);
    setTimeout(() => made.remove(), NOTICE_MS);
  }
  setTimeout(poll, EVERY_MS);
});
