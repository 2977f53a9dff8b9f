// Confirmation dialogs before changes. A <dialog> traps the focus, closes on Escape, and restores the focus.

import { call } from "./api.js";
import { announce, button, h, mark, plain, stranger, TYPED } from "./dom.js";
import { duration, now } from "./format.js";

const LENGTHS = [
  ["15m", "15 minutes"],
  ["1h", "1 hour"],
  ["6h", "6 hours"],
  ["1d", "1 day"],
  ["7d", "7 days"],
  ["permanent", "Until removed"],
];

// Show a dialog with fields; `act(values)` makes the change and returns a message. Resolve to whether it was made.
function ask({ title, about, fields = [], does, danger = false, act }) {
  const heading = mark("question");
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const inputs = fields.map(({ name, label, options, value = "", hint, ...rest }) => {
    const id = mark(name);
    const input = options
      ? h(
          "select",
          { id, name },
          options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
        )
      : h("input", { id, name, value, ...TYPED, "aria-describedby": hint ? `${id}-hint` : null, ...rest });
    return h(
      "p",
      { class: "field" },
      h("label", { for: id }, label),
      input,
      hint && h("small", { id: `${id}-hint` }, hint),
    );
  });
  const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, does);
  // A ban of the user's own address needs a second confirmation.
  const force = h("input", { id: mark("force"), type: "checkbox", name: "force", value: "yes" });
  const really = h(
    "p",
    { class: "check", hidden: true },
    force,
    h("label", { for: force.id }, "Yes, ban my own address"),
  );
  const cancel = button("Cancel", () => dialog.close());
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: heading }, title),
    about && h("p", {}, about),
    inputs,
    wrong,
    really,
    h("p", { class: "buttons" }, cancel, submit),
  );
  const dialog = h("dialog", { "aria-labelledby": heading }, form);
  return new Promise((resolve) => {
    let done = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      wrong.hidden = true;
      try {
        announce(await act(Object.fromEntries(new FormData(form))));
        done = true;
        dialog.close();
      } catch (problem) {
        wrong.textContent = plain(explain(problem), 400);
        wrong.hidden = false;
        really.hidden = problem.status !== 409;
        submit.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    document.body.append(dialog);
    dialog.showModal();
    (
      form.querySelector("input:not([value]), input[value='']") ??
      form.querySelector("input, select") ??
      cancel
    ).focus();
  });
}

export function explain(problem) {
  if (problem.status === 409) return "This would ban your own address. Tick the box to ban it anyway.";
  if (problem.status === 429 && problem.retryAfterS) {
    return `Too many requests. Try again in ${duration(problem.retryAfterS)}. ${problem.detail}`.trim();
  }
  return problem.detail || problem.title || String(problem);
}

// A button that makes a change after confirmation, then refreshes the page.
export const change = (page, text, question, more) =>
  button(
    text,
    async () => {
      if (await question()) await page.refresh();
    },
    { disabled: !page.mayChange, ...more },
  );

function bannedUntil({ target, until_at: end }) {
  return `${plain(target)} is banned ${end ? `for ${duration(end - now())}` : "until the ban is removed"}.`;
}

// Ban a client, or change its ban.
export const askBan = (target = "", ban = null) =>
  ask({
    title: ban ? "Change the ban" : target ? "Ban this client" : "Ban a client",
    about: target && stranger(target),
    does: ban ? "Change" : "Ban",
    danger: true,
    fields: [
      ...(target
        ? []
        : [
            {
              name: "target",
              label: "Address, network or key",
              required: true,
              maxlength: 1024,
              hint: "For example 203.0.113.7, 198.51.100.0/24 or user:42",
            },
          ]),
      { name: "duration", label: ban ? "From now on, for" : "For", options: LENGTHS, value: "1h" },
      {
        name: "reason",
        label: "Reason",
        maxlength: 200,
        value: ban?.reason ?? "",
        hint: "Shown to operators only, never to the client.",
      },
    ],
    act: async (values) =>
      bannedUntil(
        await call("POST", "bans", {
          target: target || values.target,
          duration: values.duration,
          reason: values.reason,
          force: values.force === "yes",
        }),
      ),
  });

export const askUnban = (target) =>
  ask({
    title: "Remove the ban",
    about: stranger(target),
    does: "Unban",
    act: async () => {
      await call("DELETE", `bans?${new URLSearchParams({ target })}`);
      return `${plain(target)} is no longer banned.`;
    },
  });

export const askRestore = (name) =>
  ask({
    title: "Restore the limit configured in code",
    about: stranger(name),
    does: "Restore",
    act: async () => {
      await call("DELETE", `limits?${new URLSearchParams({ name })}`);
      return `The limit ${plain(name)} is restored as configured in code.`;
    },
  });
