const join = document.getElementById("join");
const write = document.getElementById("write");
const state = document.getElementById("state");
const heard = document.getElementById("heard");

const MOST_SHOWN = 200;
// What a close code means for the person who reads it.
const CLOSED = {
  1003: "Only text can be sent.",
  1008: "You are shut out. Come back later.",
  1009: "That message was too long. You may join again.",
  1013: "That was too much at once. You may join again in a few seconds.",
};
// A browser does not tell a script why a handshake was refused.
const NOT_LET_IN = "You were not let in: too many tries, too many open windows, or a ban. Wait a minute.";

let socket = null;

function show(line) {
  const item = document.createElement("li");
  item.className = "note" in line ? "note" : "message";
  item.textContent = "note" in line ? line.note : `${line.from}: ${line.text}`;
  heard.append(item);
  while (heard.children.length > MOST_SHOWN) heard.firstChild.remove();
  heard.scrollTop = heard.scrollHeight;
}

function allow(writing) {
  for (const part of write.elements) part.disabled = !writing;
  for (const part of join.elements) part.disabled = writing;
}

join.addEventListener("submit", (event) => {
  event.preventDefault();
  const { name, room } = Object.fromEntries(new FormData(join));
  const address = new URL(`rooms/${encodeURIComponent(room)}`, location.href.replace(/^http/, "ws"));
  address.searchParams.set("name", name);
  const joined = (socket = new WebSocket(address));
  let opened = false;
  state.textContent = "Joining …";
  joined.onopen = () => {
    opened = true;
    heard.replaceChildren();
    state.textContent = `You are in ${room}.`;
    allow(true);
    write.elements.text.focus();
  };
  joined.onmessage = (message) => show(JSON.parse(message.data));
  joined.onclose = ({ code }) => {
    state.textContent = opened ? (CLOSED[code] ?? "The connection ended. You may join again.") : NOT_LET_IN;
    allow(false);
  };
});

write.addEventListener("submit", (event) => {
  event.preventDefault();
  socket.send(write.elements.text.value);
  write.reset();
});
