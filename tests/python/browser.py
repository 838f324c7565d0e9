"""Chromium without a window, and a picture of a page: browser.py CHROMIUM URL FILE.

Not here: what is looked at (test_fleet_page.py).
"""

import contextlib
import sys

from playwright.sync_api import expect, sync_playwright

DESK = {"width": 1280, "height": 900}


class Browser:
    def __init__(self, chromium):
        self.chromium = chromium

    def show(self, url, **context):
        """Opens a page; returns it and the list that its complaints come into."""
        page = self.chromium.new_context(**({"viewport": DESK} | context)).new_page()
        complaints = []
        page.on("console", lambda message: complaints.append(f"{message.text} {message.location['url']}") if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page, complaints


@contextlib.contextmanager
def opened(program):
    with sync_playwright() as playwright:
        # What is shown comes from loopback; a sandbox needs rights that a container has not.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        expect.set_options(timeout=20_000)
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


def main():
    program, url, file = sys.argv[1:]
    with opened(program) as browser:
        page, _ = browser.show(url)
        expect(page.locator("#decisions-rows tr")).not_to_have_count(0)
        # The workers and the first decisions, not a page of them.
        rest = "#decisions-rows tr:nth-child(n + 9), #all"
        page.evaluate("(rest) => document.querySelectorAll(rest).forEach((row) => { row.hidden = true; })", rest)
        page.screenshot(path=file, full_page=True)


if __name__ == "__main__":
    main()
