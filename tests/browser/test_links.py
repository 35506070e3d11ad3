# SPDX-License-Identifier: Apache-2.0
"""From a claim, a sum or a name to what it rests on."""

from __future__ import annotations

import pytest

from tests.browser.chromium import looking

pytestmark = pytest.mark.browser

_KEPT = "gpucorrelate.whole().grid.order"


@pytest.fixture
def run(reports, browser):
    with looking(browser, reports.page()) as look:
        yield look
        assert look.complaints == []


@pytest.mark.parametrize(("name", "key"), [("TTFT", "ttft_ns"), ("TPOT", None)])
def test_a_band_of_a_latency_leads_to_its_requests(run, reports, name, key):
    rows = run.page.locator(f'[data-spread="{name}"] .bands tbody tr').all()
    seen: list[int] = []
    for row in rows:
        row.locator("button").click()
        shown = run.evaluate(_KEPT)
        assert str(len(shown)) == row.locator("td").first.inner_text()
        seen += shown
        assert run.page.locator("#chosen").is_visible()
        run.press("Escape")
        assert run.page.locator("#chosen").is_hidden()
    assert len(seen) == len(set(seen))
    if key is not None:
        known = [one for one in reports.json("--slowest", "1000") if one[key] is not None]
        assert len(seen) == len(known)


def test_a_category_leads_to_the_requests_with_most_of_it(run, reports):
    name = list(reports.json()["by_category"])[1]
    run.page.locator("#shares").get_by_role("button", name=name, exact=True).click()
    (first, *_) = run.evaluate(
        f"{_KEPT}.map(i => gpucorrelate.whole().columns.r_id[i])"
        ".map(at => document.querySelector(`#requests .row.active .id`).textContent)"
    )
    most = max(
        reports.json("--slowest", "1000"),
        key=lambda one: sum(
            part["end_ns"] - part["start_ns"]
            for part in one["segments"]
            if part["category"] == name
        ),
    )
    assert first == most["request_id"]


def test_a_moment_leads_to_the_requests_that_were_in_flight(run, reports):
    box = run.page.locator("canvas").bounding_box()
    row = run.evaluate("gpucorrelate.whole().chart.rows[0].top")
    run.page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + row + 40)
    shown = run.evaluate(_KEPT)
    assert 0 < len(shown) < reports.json()["requests"]
    assert "in flight from" in run.page.locator("#chosen").inner_text()


def test_a_step_leads_to_its_requests_and_these_to_their_steps(run, reports):
    run.page.locator("#steps .row[data-row]").first.click()
    run.opened_any()
    first = run.page.locator("header .note a").first
    wanted = first.inner_text()
    first.click()
    run.opened(wanted)
    run.page.go_back()
    run.until("gpucorrelate.opened()?.one.what === 'step'")


def test_the_rest_of_the_hosts_rows_comes_when_asked_for(reports, browser):
    with looking(browser, reports.page("--slowest", "1")) as look:
        rows = "gpucorrelate.opened().chart.rows.length"
        button = look.page.locator(".more button")
        if button.count():
            few = look.evaluate(rows)
            button.click()
            assert look.evaluate(rows) > few
            button.click()
            assert look.evaluate(rows) == few
        # Either way every reading is in the table.
        look.page.locator("#host summary").click()
        assert look.page.locator("#host tbody tr").count() >= 1


def test_what_was_not_looked_at_is_said_at_the_top(run, reports):
    missing = reports.json()["ledger"]["missing"]
    badge = run.page.locator("h1 .badge.odd")
    assert badge.count() == (1 if missing else 0)
    if missing:
        for one in missing:
            assert one in badge.get_attribute("title")
        badge.click()
        assert run.page.locator("#uncovered").is_visible()


def test_what_is_unknown_of_a_request_is_said_above_its_picture(reports, browser):
    with looking(browser, reports.page("--slowest", "1")) as look:
        words = look.page.locator(".unknown").bounding_box()
        picture = look.page.locator("canvas").bounding_box()
        assert words is not None
        assert picture is not None
        assert words["y"] < picture["y"]
