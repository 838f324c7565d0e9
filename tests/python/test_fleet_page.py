"""The fleet page as a user sees it, in Chromium: test_fleet_page.py CHROMIUM ROUTER_URL ADMIN_URL.

tests/tests/system/fleet_page.rs starts the fleet: two workers with the tiny model and one whose model's name is markup, and has asked
for some conversations, one of them under an id that is markup.
"""

import re
import sys
import unittest

from browser import opened
from playwright.sync_api import expect

ADMIN = sys.argv.pop()
ROUTER = sys.argv.pop()
CHROMIUM = sys.argv.pop()
HOSTILE = "<script>window.harm=1</script>"
PHONE = {"width": 360, "height": 740}


class FleetPage(unittest.TestCase):
    def setUp(self):
        self.browser = self.enterContext(opened(CHROMIUM))
        self.page, self.complaints = self.browser.show(ADMIN + "/")
        expect(self.page.locator("#workers-rows tr")).to_have_count(3)

    def tearDown(self):
        self.assertEqual(self.complaints, [])

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def test_shows_workers_headline_numbers_and_decisions(self):
        expect(self.page.locator("#ready")).to_have_text("3 of 3")
        expect(self.page.locator("#readiness")).to_have_text("ready")
        for name in ("hit", "predicted", "held"):
            expect(self.page.locator(f"#{name}")).to_have_text(re.compile(r"^\d+\.\d %$"))
        self.assertGreater(float(self.text("#hit").removesuffix(" %")), 10)
        expect(self.page.locator("#ttft50")).to_contain_text("s")
        rows = self.page.locator("#decisions-rows tr")
        self.assertGreater(rows.count(), 5)
        reasons = set(self.page.locator("#decisions-rows td:nth-child(3)").all_inner_texts())
        self.assertLessEqual({"prefix", "cold"}, reasons)
        self.assertLessEqual(reasons, {"prefix", "cold", "load", "only", "retry"})
        expect(rows.first).to_contain_text("answered")

    def test_names_that_are_markup_are_shown_as_text_and_have_no_effect(self):
        expect(self.page.locator("#workers-rows")).to_contain_text(HOSTILE)
        expect(self.page.locator("#decisions-rows")).to_contain_text(HOSTILE)
        expect(self.page.locator("#decisions-rows")).to_contain_text("<img/src=x/onerror=window.harm=1>")
        self.assertIsNone(self.page.evaluate("window.harm ?? null"))
        self.assertEqual(self.page.locator("table script, table img").count(), 0)

    def test_hosts_are_shown_with_the_state_of_their_models_if_there_are_any(self):
        expect(self.page.locator("#hosts")).to_be_hidden()
        state = {"state": "loaded", "worker_url": "http://w", "n_running": 2, "idle_ms": 0, "load_ms": 900}
        loaded = {"name": HOSTILE, "aliases": ["small"], "is_autoloaded": True, "is_pinned": True, **state}
        state = {"state": "loadable", "memory_bytes": 3 * 2**30, "load_ms": 2300, "wait_ms": 200, "evicts_ms": 900, "is_local": True}
        loadable = {"name": "other", "aliases": [], "is_autoloaded": True, "is_pinned": False, **state}
        memory = [{"device": "ram", "budget_bytes": 4 * 2**30, "free_bytes": 2**30}]
        host = {"url": "http://h:1", "state": "live", "trouble": None, "memory": memory, "models": [loaded, loadable]}

        def answer_with_host(route):
            route.fulfill(json={**route.fetch().json(), "hosts": [host]})

        self.page.route("**/internal/v1/fleet", answer_with_host)
        rows = self.page.locator("#models-rows tr")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text(HOSTILE)
        expect(rows.first).to_contain_text("2 requests")
        expect(rows.last).to_contain_text("takes 3.0 GiB and 2.50 s, displaces 900 ms")
        expect(self.page.locator("#hosts-memory")).to_have_text("http://h:1 is live, 1.0 GiB of 4.0 GiB free on ram")
        self.assertIsNone(self.page.evaluate("window.harm ?? null"))

    def test_every_control_is_reached_and_used_by_keyboard(self):
        reached = []
        for _ in range(24):
            self.page.keyboard.press("Tab")
            reached.append(self.page.evaluate("(document.activeElement.textContent ?? '').trim().split('\\n')[0]"))
            outline = self.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            self.assertEqual(outline, "solid", f"no visible focus at {reached[-1]}")
            if reached[-1] == "metrics":
                break
        places = [reached.index(name) for name in ("Skip to the workers", "5 minutes", "Pause", "As a table", "Worker", "Heard", "What the reasons mean", "metrics")]
        self.assertEqual(places, sorted(places), reached)

        self.page.reload()
        expect(self.page.locator("#workers-rows tr")).to_have_count(3)
        self.page.keyboard.press("Tab")
        self.page.keyboard.press("Enter")
        self.assertEqual(self.page.evaluate("document.activeElement.id"), "workers")
        self.page.locator("#pause").focus()
        self.page.keyboard.press("Space")
        expect(self.page.locator("#pause")).to_have_attribute("aria-pressed", "true")
        expect(self.page.locator("#news")).to_have_text("Paused")
        self.page.locator("#workers-head button", has_text="Holds").focus()
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#workers-head th", has_text="Holds")).to_have_attribute("aria-sort", "ascending")
        self.assertEqual(self.held(), sorted(self.held()))
        self.page.keyboard.press("Enter")
        self.assertEqual(self.held(), sorted(self.held(), reverse=True))

    def held(self):
        texts = self.page.locator("#workers-rows tr td[data-label=Holds]").all_inner_texts()
        return [int(text.split()[0].replace(",", "")) for text in texts]

    def test_charts_have_a_description_and_a_table(self):
        figures = self.page.locator("figure")
        expect(figures).to_have_count(3)
        picture = self.page.get_by_role("img", name="Prefix hit ratio")
        expect(picture).to_have_accessible_description(re.compile(r"reused: \d+\.\d %, from"))
        figures.first.get_by_text("As a table").click()
        table = figures.first.get_by_role("table")
        expect(table.get_by_role("columnheader")).to_have_text(["Until", "ceiling", "predicted", "reused"])
        expect(table.get_by_role("row").nth(1)).to_contain_text("%")

    def test_a_phone_shows_the_page_without_horizontal_scrolling_in_both_schemes(self):
        for scheme in ("light", "dark"):
            page, complaints = self.browser.show(ADMIN + "/fleet", viewport=PHONE, color_scheme=scheme)
            expect(page.locator("#workers-rows tr")).to_have_count(3)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), PHONE["width"])
            wide = "[...document.querySelectorAll('td, th, figure, .card, button')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length"
            self.assertEqual(page.evaluate(wide), 0)
            self.assertEqual(complaints, [])

    def test_text_has_contrast_in_both_schemes(self):
        for scheme in ("light", "dark"):
            page, _ = self.browser.show(ADMIN + "/fleet", color_scheme=scheme)
            expect(page.locator("#workers-rows tr")).to_have_count(3)
            for selector in ("body", ".quiet", ".badge.ready", "td small", "a[href=metrics]", "figcaption li", ".value"):
                self.assertGreaterEqual(page.evaluate(CONTRAST, selector), 4.5, f"{selector}, {scheme}")

    def test_shows_an_error_when_the_router_does_not_answer(self):
        self.page.route("**/internal/v1/fleet", lambda route: route.fulfill(status=500, body="{}"))
        expect(self.page.get_by_role("alert")).to_contain_text("internal/v1/fleet answers 500")
        self.page.unroute("**/internal/v1/fleet")
        expect(self.page.locator("#trouble")).to_be_hidden()
        # The browser's own note of the failed request is expected here.
        self.assertTrue(all("500" in complaint for complaint in self.complaints), self.complaints)
        self.complaints.clear()


# Returns the contrast of an element's text against what lies behind it (WCAG 2.2, "contrast ratio").
CONTRAST = """(selector) => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map((text) => luminance(rgb(text)));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""

if __name__ == "__main__":
    unittest.main()
