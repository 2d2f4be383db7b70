// What the theme leaves out for readers who use a keyboard or a screen reader: names of landmarks, levels of headings,
// and boxes that can be scrolled without a mouse.
"use strict";

function reachable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector("aside.sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const caption of document.querySelectorAll("[role=heading]:not([aria-level])")) {
    caption.setAttribute("aria-level", "2");
  }
  for (const head of document.querySelectorAll("article th")) {
    if (!head.textContent.trim()) head.replaceWith(document.createElement("td")); // a corner is no heading
  }
  for (const summary of document.querySelectorAll("summary[aria-label]")) {
    summary.removeAttribute("aria-label"); // its own words say more
  }
  reachable();
  window.addEventListener("resize", reachable);
  document.addEventListener("toggle", reachable, true); // what was folded has no width before
});
