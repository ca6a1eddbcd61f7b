"""Write the pictures of the README: the output of `stillweb demo`, and its report.

python tools/demo_picture.py            # runs the demo (a minute) and writes both pictures
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright
from rich.console import Console
from rich.text import Text

from stillweb.browser import find_browser

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"
WIDTH = 92
_SPINNER = re.compile(r"(?:\x1b\[[\d;]*m)*[\u2800-\u28ff]")


def run_demo(out: Path) -> str:
    """Return what the demo prints to a terminal, without the pictures of its progress."""
    environment = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "stillweb", "demo", "--out", str(out)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(last_state(done.stdout))
    return done.stdout.replace(f"{out}", "out/demo")


def last_state(output: str) -> str:
    """Return terminal output without control sequences of the cursor and without the lines of spinners."""
    output = re.sub(r"\x1b\[(?:\?25[lh]|\d*[AK])", "", output).replace("\r", "\n")
    lines = (line for line in output.split("\n") if not _SPINNER.match(line))
    return re.sub(r"\n{2,}", "\n", "\n".join(line for line in lines if line.strip()))


def svg(output: str) -> str:
    """Return the output as SVG, without the fonts that rich's template loads from another host."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ stillweb demo\n{output}"))
    text = console.export_svg(title="stillweb demo")
    text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL)
    return text.replace("Fira Code", "ui-monospace, Menlo, Consolas")


async def report_picture(page_file: Path, target: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1100, "height": 700})
        await page.goto(page_file.as_uri())
        await page.screenshot(path=target)
        await browser.close()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        output = run_demo(out)
        ASSETS.mkdir(exist_ok=True)
        (ASSETS / "demo.svg").write_text(svg(last_state(output)), "utf-8")
        report = next(iter(sorted(out.rglob("index.html"))))
        asyncio.run(report_picture(report, ASSETS / "report.png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
