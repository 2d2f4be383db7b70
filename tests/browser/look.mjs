// Looks at an HTML file or a local page as its readers will: phone and desk, light and dark, on paper, without scripts.
//
//   node look.mjs PAGE.html|http://... OUT_DIR [CHROMIUM [VIEW,...]]
//
// The views are phone-light, phone-dark, desk-light, desk-dark, print and no-script; all of them if none is named.
// Writes screenshots and a PDF to OUT_DIR and prints one JSON object: per view the horizontal overflow, console
// messages, requests for anything but the page itself (and what lies below the address of a local one), and axe's
// violations.
import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, openDetails, overflow, sizes, violations } from "./checks.mjs";

const [page_, out_, executablePath = "/usr/bin/chromium", chosen = ""] = process.argv.slice(2);
if (!page_ || !out_) {
  console.error("usage: node look.mjs PAGE.html OUT_DIR [CHROMIUM [VIEW,...]]");
  process.exit(2);
}
const served = page_.startsWith("http://127.0.0.1:");
const url = served ? page_ : pathToFileURL(resolve(page_)).href;
const own = (requested) => (served ? requested.startsWith(url) : requested.split("#")[0] === url);
const out = resolve(out_);

async function look(name, { viewport, colorScheme = "light", javaScriptEnabled = true, media = "screen" }) {
  const context = await browser.newContext({ viewport, colorScheme, javaScriptEnabled });
  context.setDefaultTimeout(120_000);
  try {
    const page = await context.newPage();
    const requests = [];
    const console_ = [];
    page.on("request", (request) => own(request.url()) || requests.push(request.url()));
    page.on("console", (message) => console_.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => console_.push(`error: ${error.message}`));
    await page.emulateMedia({ media, colorScheme });
    await page.goto(url, { waitUntil: served && javaScriptEnabled ? "networkidle" : "load" });
    const found = { requests, console: console_, heading: await page.locator("h1").innerText() };
    found.charts = await page.locator("svg[role=img]").count();
    await page.screenshot({ path: join(out, `${name}.png`), fullPage: true });
    if (media === "print") {
      await page.pdf({ path: join(out, `${name}.pdf`), format: "A4", preferCSSPageSize: true });
    } else if (javaScriptEnabled) {
      await check(page, found, name);
    }
    return found;
  } finally {
    await context.close();
  }
}

async function check(page, found, name) {
  found.overflow = await overflow(page);
  found.axe = await violations(page);
  await openDetails(page);
  found.overflowOpened = await overflow(page);
  found.axeOpened = await violations(page);
  await page.screenshot({ path: join(out, `${name}-opened.png`), fullPage: true });
}

mkdirSync(out, { recursive: true });
const browser = await launch(executablePath);
const views = {};
const settings = {
  print: { viewport: { width: 794, height: 1123 }, colorScheme: "dark", media: "print" },
  "no-script": { viewport: sizes.phone, javaScriptEnabled: false },
};
for (const [size, viewport] of Object.entries(sizes)) {
  for (const colorScheme of ["light", "dark"]) settings[`${size}-${colorScheme}`] = { viewport, colorScheme };
}
try {
  for (const name of chosen ? chosen.split(",") : Object.keys(settings)) views[name] = await look(name, settings[name]);
} finally {
  await browser.close();
}
console.log(JSON.stringify(views, null, 1));
