// Looks at every page of the built documentation: on a desk in light colours, then on a phone in dark ones.
//
//   node site.mjs HTML_FOLDER [CHROMIUM]
//
// Prints what is wrong, page by page, and ends with code 1 if anything is: one of axe's rules broken, a page that is
// wider than the screen (tables and code may scroll in boxes of their own), a file that is missing or that another host
// has, or an error on the console. Every <details> is opened first.
import { readdirSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch, openDetails, overflow, sizes, violations } from "./checks.mjs";

const [folder_, executablePath = "/usr/bin/chromium"] = process.argv.slice(2);
if (!folder_) {
  console.error("usage: node site.mjs HTML_FOLDER [CHROMIUM]");
  process.exit(2);
}
const folder = resolve(folder_);
const base = pathToFileURL(`${folder}/`).href;
const names = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".html")).sort();
if (!names.length) {
  console.error(`${folder} holds no pages; make html builds them`);
  process.exit(2);
}
const screens = [["desk", "light"], ["phone", "dark"]];

async function look(page, name) {
  const found = new Set();
  const told = {
    request: (request) => /^https?:/.test(request.url()) && found.add(`asks for ${request.url()}`),
    requestfailed: (request) => found.add(`does not find ${request.url().replace(base, "")}`),
    console: (message) => message.type() === "error" && found.add(`on the console: ${message.text()}`),
    pageerror: (error) => found.add(`on the console: ${error.message}`),
  };
  for (const [event, tell] of Object.entries(told)) page.on(event, tell);
  for (const [size, colorScheme] of screens) {
    await page.setViewportSize(sizes[size]);
    await page.emulateMedia({ colorScheme });
    if (size === "desk") await page.goto(base + name);
    await openDetails(page);
    const wider = await overflow(page);
    if (wider > 0) found.add(`${size}: is ${wider} px wider than the screen`);
    for (const { id, impact, help, nodes, first } of await violations(page)) {
      found.add(`${size}: ${id} (${impact}): ${help}; ${nodes} times, first ${first}`);
    }
  }
  for (const [event, tell] of Object.entries(told)) page.off(event, tell);
  return found;
}

const browser = await launch(executablePath);
let wrong = 0;
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(120_000);
  for (const name of names) {
    const found = await look(page, name);
    for (const text of found) console.log(`${name}: ${text}`);
    wrong += found.size;
  }
} finally {
  await browser.close();
}
console.log(`looked at ${names.length} pages: ${wrong || "nothing"} wrong`);
process.exitCode = wrong ? 1 : 0;
