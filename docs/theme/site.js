// A reader without a mouse reaches a wide table with the Tab key and scrolls it with the arrow keys.
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

// A picture follows the colours of the system; here it follows those of the page, which the reader may have changed.
function colour() {
  const scheme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  document.querySelectorAll("picture source[media]").forEach((source) => {
    source.dataset.scheme ??= source.media.includes("dark") ? "dark" : "light";
    source.media = source.dataset.scheme === scheme ? "all" : "not all";
  });
}

new MutationObserver(colour).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
colour();
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
