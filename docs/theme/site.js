// Whoever has no mouse reaches a wide table with the Tab key and scrolls it with the arrow keys.
// The theme wraps tables, and gives code its buttons, after the page is there.
function name(element, label) {
  if (!element.hasAttribute("aria-label")) element.setAttribute("aria-label", label);
}

function complete() {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((box, number) => {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    name(box, `Table ${number + 1}`);
  });
  document.querySelectorAll(".md-code__nav").forEach((buttons, number) => name(buttons, `Code ${number + 1}`));
}

new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
