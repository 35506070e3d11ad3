# SPDX-License-Identifier: Apache-2.0
"""Names in a recording are anybody's: none becomes a part of the page."""

from __future__ import annotations

import re

import pytest

from gpucorrelate.correlator.report.names import safe
from tests.browser.chromium import looking
from tests.browser.recordings import Hostile

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("options", [(), ("--slowest", "1"), ("--slowest", "3")])
def test_a_hostile_name_is_shown_and_does_nothing(hostile, browser, options):
    with looking(browser, hostile.page(*options)) as look:
        dialogs: list[str] = []
        look.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        shown = safe(Hostile.ID)
        if options:
            assert shown in look.page.locator("h1").inner_text() or len(options) > 1
        else:
            assert look.page.locator("#requests .id").first.inner_text().startswith(shown)
            look.page.locator("#requests .row[data-row]").first.click()
            look.opened_any()
            assert shown in look.page.locator("h1").inner_text()
        assert "</script><img" in look.page.locator("body").inner_text()
        assert look.evaluate("document.querySelectorAll('img, [onerror]').length") == 0
        assert look.evaluate("document.body.textContent.includes('\\u202e')") is False
        assert (dialogs, look.complaints, look.asked) == ([], [], [])


def test_the_policy_stops_what_would_get_in_anyway(hostile, browser):
    with looking(browser, hostile.page()) as look:
        look.evaluate("""() => {
          const script = document.createElement("script");
          script.textContent = "globalThis.fooled = true";
          document.body.append(script);
          document.body.insertAdjacentHTML("beforeend", "<img src='https://example.invalid/x'>");
        }""")
        look.page.wait_for_timeout(100)
        assert look.evaluate("globalThis.fooled") is None
        assert len(look.complaints) == 2
        assert all("Content Security Policy" in one for one in look.complaints)


def test_the_file_points_to_nothing_outside(hostile):
    text = hostile.page().read_text()
    head = re.sub(r'<script type="text/plain".*?</script>', "", text, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="(?!#)[^"]', head) == []
    urls = set(re.findall(r"https?://[^\s\"'<>\\]+", head))
    # The name of SVG's elements, which nobody loads.
    assert urls <= {"http://www.w3.org/2000/svg"}
