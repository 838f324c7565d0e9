"""A picture of the chat page after two questions: picture_chat.py CHROMIUM ROUTER_URL FILE."""

import sys

from browser import opened
from playwright.sync_api import expect

SYSTEM = "You are a helpful guide. Answer each question in one short sentence."
QUESTIONS = ("What is the capital of France?", "What is it famous for?")


def main():
    program, url, file = sys.argv[1:]
    with opened(program) as browser:
        page, _ = browser.show(url, viewport={"width": 900, "height": 760})
        expect(page.locator("#model option")).not_to_have_count(0)
        page.get_by_text("System prompt and API key").click()
        page.get_by_label("System prompt").fill(SYSTEM)
        page.get_by_text("System prompt and API key").click()
        for n, question in enumerate(QUESTIONS):
            page.get_by_label("Message", exact=True).fill(question)
            page.keyboard.press("Enter")
            expect(page.locator("li.assistant .figures").nth(n)).not_to_be_empty(timeout=120_000)
        page.screenshot(path=file)


if __name__ == "__main__":
    main()
