# SPDX-License-Identifier: Apache-2.0
"""Ten thousand requests, a million segments: the page is small enough, and answers at once."""

from __future__ import annotations

import pytest

from tests.bench.report.synthetic import frames
from tests.browser.chromium import looking
from tests.browser.conftest import Reports

pytestmark = [pytest.mark.browser, pytest.mark.slow]

REQUESTS, TOKENS = 10_000, 8


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    with (folder / "many.gpcf").open("wb") as out:
        out.writelines(frames(REQUESTS, TOKENS))
    return Reports(folder / "many.gpcf", folder)


def test_ten_thousand_requests_are_in_one_page(many, browser):
    page = many.page()
    segments = 0
    with looking(browser, page) as look:
        assert look.value('[data-fact="requests"]') == REQUESTS
        # Of the list only what is on the screen exists.
        assert look.page.locator("#requests .row[data-row]").count() < 40
        assert look.evaluate("document.querySelectorAll('*').length") < 5_000
        look.page.locator("#requests .grid").focus()
        look.press("End")
        look.frame()
        last = look.page.locator("#requests .row.active")
        assert last.get_attribute("aria-rowindex") == str(REQUESTS + 1)
        look.press("Enter")
        look.opened_any()
        segments = look.evaluate("gpucorrelate.opened().path.many")
        # One block of many was unpacked.
        assert look.complaints == []
    assert segments * REQUESTS > 500_000
    # Some bytes a segment: what a page is too large for would be tens.
    assert page.stat().st_size < segments * REQUESTS * 16
