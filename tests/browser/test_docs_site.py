"""The look at the documentation's pages (site.mjs, which ``make docs`` runs) sees what is wrong, and on which page.

Slow, since every change that concerns it runs ``make docs``. Needs what the look at the report's page needs; skipped
where one of them is absent.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.browser.test_report_page import CHROMIUM, HERE, NODE
from tests.browser.test_report_page import pytestmark as needs_a_browser

pytestmark = [*needs_a_browser, pytest.mark.slow]

SOUND = """<!doctype html><html lang="en"><head><title>Sound</title>
<meta name="viewport" content="width=device-width"><style>@keyframes fade { from { opacity: 0 } }
details[open] p { animation: fade 0.5s } @media (prefers-color-scheme: dark) { body { background: #000; color: #fff } }
</style></head><body><main><h1>Sound</h1><div tabindex="0" style="overflow-x: auto"><div style="width: 3000px">wide
</div></div><details><summary>Folded</summary><p>It fades in.</p></details></main></body></html>"""


def test_the_look_at_the_site_names_pages_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    script = (
        "<script src='http://127.0.0.1:9/font.js'></script><script src='lacking.js'></script><script>oops()</script>"
    )
    pages = {
        "sound.html": SOUND,
        "in/contrast.html": SOUND.replace("<h1>", "<h1 style='color: #777; background: #888'>"),
        "in/dark.html": SOUND.replace("color: #fff }", "color: #222 }"),
        "wide.html": SOUND.replace("<h1>", "<h1 style='width: 600px'>"),
        "folded.html": SOUND.replace("<p>", "<p style='width: 2000px'>"),
        "scripts.html": SOUND.replace("<h1>", f"{script}<h1>"),
    }
    (tmp_path / "in").mkdir()
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [str(NODE), str(HERE / "site.mjs"), str(tmp_path), str(CHROMIUM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    *lines, last = done.stdout.splitlines()
    for page, screens, says in [
        ("in/contrast.html", ["desk", "phone"], "color-contrast (serious)"),
        ("in/dark.html", ["phone"], "color-contrast (serious)"),
        ("wide.html", ["phone"], "px wider than the screen"),
        ("folded.html", ["desk", "phone"], "px wider than the screen"),
    ]:
        assert [line.split(": ")[1] for line in lines if line.startswith(f"{page}: ") and says in line] == screens
    for says in (
        "asks for http://127.0.0.1:9/font.js",
        "does not find lacking.js",
        "on the console: oops is not defined",
    ):
        assert f"scripts.html: {says}" in lines
    assert not [line for line in lines if line.startswith("sound.html")]
    assert last == f"looked at {len(pages)} pages: {len(lines)} wrong"
