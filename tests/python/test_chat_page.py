"""The chat page as a user sees it, in Chromium: test_chat_page.py CHROMIUM ROUTER_URL KEY.

tests/tests/system/chat_page.rs starts the fleet: a worker with the tiny model, whose other name is markup, behind a router with --ui that
requires KEY.
"""

import json
import re
import subprocess
import sys
import unittest

from browser import opened
from playwright.sync_api import expect

KEY = sys.argv.pop()
ROUTER = sys.argv.pop()
CHROMIUM = sys.argv.pop()
HOSTILE = "<img src=x onerror=window.harm=1>"
PHONE = {"width": 360, "height": 740}
FIGURES = re.compile(r"^\S+ \(\S+\) · [\d,]+ of [\d,]+ prompt tokens reused · first token after [\d.]+ m?s · ")
# Answers each request with one word and never ends, until the page stops it.
ENDLESS = """() => {
  window.ofBrowser ??= window.fetch;
  window.fetch = async (_, { signal }) => new Response(new ReadableStream({
    start(control) {
      control.enqueue(new TextEncoder().encode('data: {"choices": [{"index": 0, "delta": {"content": "one"}}]}\\n\\n'));
      signal.addEventListener("abort", () => control.error(signal.reason));
    },
  }));
}"""

# Lists a model that is not loaded, says that it is being loaded, and answers when the test lets it.
LOADING = """() => {
  const chunk = 'data: {"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": "stop"}]}\\n\\n';
  window.fetch = async (target) => {
    const { pathname } = new URL(target);
    if (pathname.endsWith("/v1/models/slow")) return Response.json({ status: { value: "loading", progress: 0.4 } });
    if (pathname.endsWith("/v1/models")) {
      const state = window.isLoaded ? "loaded" : "unloaded";
      return Response.json({ data: [{ id: "slow", capabilities: window.isLoaded ? ["chat"] : [], status: { value: state } }] });
    }
    await new Promise((resolve) => { window.answerNow = resolve; });
    window.isLoaded = true;
    return new Response(chunk);
  };
}"""


class ChatPage(unittest.TestCase):
    def setUp(self):
        self.browser = self.enterContext(opened(CHROMIUM))
        self.page, self.complaints = self.browser.show(ROUTER + "/")
        # Without the key the list of models is refused, which the browser notes, too.
        expect(self.page.get_by_role("alert")).to_contain_text("status 401")
        expect(self.page.get_by_label("API key")).to_be_focused()
        self.complaints.clear()
        self.page.get_by_label("API key").fill(KEY)
        self.page.keyboard.press("Tab")
        expect(self.page.locator("#model option")).to_have_count(2)
        expect(self.page.get_by_role("alert")).to_be_hidden()
        self.page.get_by_label("Model").select_option("tiny")

    def tearDown(self):
        self.assertEqual(self.complaints, [])

    def ask(self, text):
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def answered(self, n):
        figures = self.page.locator("li.assistant .figures")
        expect(figures).to_have_count(n)
        expect(figures.nth(n - 1)).to_have_text(FIGURES)
        return figures.nth(n - 1).inner_text()

    def test_a_conversation_reuses_its_own_prefix_and_shows_it(self):
        self.page.get_by_label("System prompt").fill("one two three four five six seven eight nine ten " * 8)
        self.limit(8)
        self.ask("one two three")
        self.answered(1)
        expect(self.page.get_by_role("status").first).to_have_text("The answer is complete.")
        self.ask("four five six")
        reused, prompt = re.search(r"([\d,]+) of ([\d,]+) prompt", self.answered(2)).groups()
        self.assertGreater(int(reused.replace(",", "")), int(prompt.replace(",", "")) // 2)
        self.page.get_by_role("button", name="New chat").click()
        expect(self.page.locator("#messages li")).to_have_count(0)

    def limit(self, n_tokens):
        """Limits the answers of this page's requests, as the model made by code ends none by itself."""
        def shorten(route):
            body = route.request.post_data_json | {"max_tokens": n_tokens}
            self.sent = body
            route.continue_(post_data=json.dumps(body))

        self.page.route("**/v1/chat/completions", shorten)

    def test_an_answer_is_stopped_by_keyboard_and_button_and_stays_in_the_conversation(self):
        self.page.evaluate(ENDLESS)
        self.ask("one two three")
        expect(self.page.locator("li.assistant .text").first).to_have_text("one")
        self.page.keyboard.press("Escape")
        expect(self.page.locator("li.assistant .figures").first).to_contain_text("stopped")
        expect(self.page.get_by_role("button", name="Stop")).to_be_hidden()
        self.page.evaluate("() => { window.fetch = window.ofBrowser; }")
        self.limit(4)
        self.ask("four")
        self.answered(2)
        self.assertEqual([message["role"] for message in self.sent["messages"]], ["user", "assistant", "user"])
        self.page.evaluate(ENDLESS)
        self.ask("five")
        expect(self.page.locator("li.assistant .text").nth(2)).to_have_text("one")
        self.page.get_by_role("button", name="Stop").click()
        expect(self.page.locator("li.assistant .figures").nth(2)).to_contain_text("stopped")

    def test_a_model_that_is_not_loaded_is_listed_and_its_progress_is_shown_until_it_answers(self):
        self.page.evaluate(LOADING)
        self.page.get_by_label("API key").dispatch_event("change")
        option = self.page.locator("#model option")
        expect(option).to_have_text(["slow (not loaded)"])
        self.ask("one two three")
        figures = self.page.locator("li.assistant .figures").first
        expect(figures).to_have_text("The model is being loaded: 40 %.")
        self.page.evaluate("() => window.answerNow()")
        expect(self.page.locator("li.assistant .text").first).to_have_text("one")
        expect(figures).not_to_contain_text("loaded")
        expect(option).to_have_text(["slow"])

    def test_markup_is_shown_as_text_and_has_no_effect(self):
        chunk = {"choices": [{"index": 0, "delta": {"content": HOSTILE, "reasoning_content": HOSTILE}, "finish_reason": "stop"}]}
        answer = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        self.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=answer, content_type="text/event-stream"))
        self.page.get_by_label("Model").select_option(HOSTILE)
        self.ask(HOSTILE)
        expect(self.page.locator("li.user .text").first).to_have_text(HOSTILE)
        expect(self.page.locator("li.assistant .thought").first).to_have_text(HOSTILE)
        expect(self.page.locator("li.assistant .text").first).to_have_text(HOSTILE)
        self.assertIsNone(self.page.evaluate("window.harm ?? null"))
        self.assertEqual(self.page.locator("img").count(), 0)

    def test_the_copied_command_sends_the_same_request_and_has_no_key(self):
        self.page.get_by_label("Message", exact=True).fill("it's one")
        self.page.get_by_role("button", name="Copy as curl").click()
        command = self.page.locator("#command-text").input_value()
        self.assertNotIn(KEY, command)
        expect(self.page.locator("#copied")).not_to_be_empty()
        self.page.keyboard.press("Escape")
        expect(self.page.get_by_role("dialog")).to_be_hidden()
        shorter = command.replace('"stream":true', '"stream":true,"max_tokens":2')
        asked = subprocess.run(["sh", "-c", shorter], env={"WARMPATH_API_KEY": KEY, "PATH": "/usr/bin:/bin", "no_proxy": "*"}, capture_output=True, text=True, timeout=60)
        self.assertIn("data: [DONE]", asked.stdout, asked.stderr)

    def test_errors_are_shown_and_the_question_is_kept(self):
        self.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json={"error": {"message": "no worker"}}))
        self.ask("one two three")
        expect(self.page.get_by_role("alert")).to_have_text("no worker (status 503)")
        expect(self.page.get_by_label("Message", exact=True)).to_have_value("one two three")
        expect(self.page.locator("#messages li")).to_have_count(0)
        cut = 'data: {"choices": [{"index": 0, "delta": {"content": "one"}}]}\n\n'
        self.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=cut, content_type="text/event-stream"))
        self.ask("one two three")
        expect(self.page.get_by_role("alert")).to_have_text("The answer broke off.")
        expect(self.page.locator("li.assistant .figures").first).to_contain_text("broken off")
        # The browser's own note of the failed request is expected here.
        self.assertTrue(all("503" in complaint for complaint in self.complaints), self.complaints)
        self.complaints.clear()

    def test_the_key_is_kept_for_this_tab_only(self):
        self.page.reload()
        expect(self.page.locator("#model option")).to_have_count(2)
        self.assertEqual(self.page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]"), [0, "", 1])
        other = self.page.context.new_page()
        other.goto(ROUTER + "/chat")
        expect(other.get_by_role("alert")).to_contain_text("status 401")

    def test_every_control_is_reached_by_keyboard_with_a_visible_focus(self):
        self.page.reload()
        expect(self.page.locator("#model option")).to_have_count(2)
        self.page.get_by_text("System prompt and API key").click()
        self.page.locator(".skip").focus()
        reached = []
        for _ in range(12):
            self.page.keyboard.press("Tab")
            reached.append(self.page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
            outline = self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            self.assertEqual(outline, "solid", f"no visible focus at {reached[-1]}")
            if reached[-1] == "curl":
                break
        for control in ("model", "fresh", "system", "key", "prompt", "send", "curl"):
            self.assertIn(control, reached)

    def test_a_phone_shows_the_page_without_horizontal_scrolling_in_both_schemes(self):
        for scheme in ("light", "dark"):
            page, _ = self.browser.show(ROUTER + "/chat", viewport=PHONE, color_scheme=scheme)
            page.evaluate("(key) => sessionStorage.setItem('warmpath-api-key', key)", KEY)
            page.reload()
            expect(page.locator("#model option")).to_have_count(2)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), PHONE["width"])
            wide = "[...document.querySelectorAll('button, select, textarea, summary')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length"
            self.assertEqual(page.evaluate(wide), 0)
            bottom = page.locator("#curl").evaluate("(e) => e.getBoundingClientRect().bottom")
            self.assertLessEqual(bottom, PHONE["height"])


if __name__ == "__main__":
    unittest.main()
