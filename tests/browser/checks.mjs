// What look.mjs and site.mjs ask of every page: how far it is wider than the screen, and which of axe's rules it breaks.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

export const sizes = { phone: { width: 390, height: 844 }, desk: { width: 1280, height: 900 } };
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
const args = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

export function launch(executablePath) {
  return chromium.launch({ executablePath, headless: true, args, timeout: 120_000 }); // with an empty profile of its own
}

export function overflow(page) {
  return page.evaluate(() => Math.max(0, document.scrollingElement.scrollWidth - window.innerWidth));
}

// Opens what is folded, and waits until the page's scripts have heard of it and nothing moves or fades any more.
export function openDetails(page) {
  return page.evaluate(async () => {
    document.querySelectorAll("details").forEach((one) => (one.open = true));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    for (const one of document.getAnimations()) {
      if (Number.isFinite(one.effect.getComputedTiming().endTime)) one.finish();
    }
  });
}

export async function violations(page) {
  if (!(await page.evaluate(() => "axe" in window))) {
    await page.evaluate(axe); // no script element, which a page's own policy would keep out
  }
  return page.evaluate(async (runOnly) => {
    const how = { runOnly, resultTypes: ["violations"], preload: false }; // no rule of these tags reads style sheets
    const result = await window.axe.run(document, how);
    return result.violations.map(({ id, help, impact, nodes }) => ({
      id, help, impact, nodes: nodes.length, first: nodes[0].html.slice(0, 300), why: nodes[0].failureSummary,
    }));
  }, tags);
}
