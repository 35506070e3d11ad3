# SPDX-License-Identifier: Apache-2.0
"""Everything can be reached without a pointer, and is said to those who do not see it."""

from __future__ import annotations

import itertools

import pytest

from tests.browser.chromium import looking

pytestmark = pytest.mark.browser


@pytest.fixture
def run(reports, browser):
    with looking(browser, reports.page()) as look:
        yield look
        assert look.complaints == []


@pytest.fixture
def request_page(reports, browser):
    with looking(browser, reports.page("--slowest", "1")) as look:
        yield look
        assert look.complaints == []


def test_a_request_is_opened_and_left_by_keys(run):
    run.page.locator("#requests .grid").focus()
    run.press("ArrowDown", "ArrowDown", "Enter")
    run.opened_any()
    assert run.page.locator("#announce").inner_text().endswith("opened")
    wanted = run.page.locator("[data-document]").get_attribute("data-document")
    run.press("Escape")
    run.opened("run")
    assert run.evaluate("document.activeElement.matches('#requests .grid')")
    active = run.page.locator("#requests .row.active .id")
    assert active.inner_text() == wanted


def test_the_browsers_own_way_back_works(run):
    run.page.locator("#requests .row[data-row]").first.click()
    run.opened_any()
    run.page.go_back()
    run.opened("run")


def test_arrows_go_from_segment_to_segment_and_say_each(request_page):
    look = request_page
    chart = look.page.locator(".chart")
    chart.focus()
    said = []
    for _ in range(4):
        look.press("ArrowRight")
        said.append(look.page.locator("#announce").inner_text())
    assert len(set(said)) > 1
    assert look.evaluate("gpucorrelate.opened().path.selected") == 3
    look.press("ArrowLeft")
    assert look.evaluate("gpucorrelate.opened().path.selected") == 2
    assert look.page.locator(".panel h3").is_visible()
    look.press("End")
    last = look.evaluate("gpucorrelate.opened().path.many") - 1
    assert look.evaluate("gpucorrelate.opened().path.selected") == last


def test_enter_zooms_and_escape_undoes_one_thing_after_the_other(request_page):
    look = request_page
    look.page.locator(".chart").focus()
    whole = look.evaluate("gpucorrelate.opened().chart.view")
    look.press("ArrowRight", "ArrowRight", "Enter")
    zoomed = look.evaluate("gpucorrelate.opened().chart.view")
    assert zoomed["to"] - zoomed["from"] < whole["to"] - whole["from"]
    look.press("Escape")
    assert look.evaluate("gpucorrelate.opened().path.selected") == -1
    look.press("Escape")
    assert look.evaluate("gpucorrelate.opened().chart.view") == whole


def test_a_claim_of_the_verdict_leads_to_the_segments_that_it_rests_on(request_page, reports):
    look = request_page
    (request,) = reports.json("--slowest", "1")
    (first, *_) = request["verdict"]["parts"]
    look.page.locator(".verdict a").first.focus()
    look.press("Enter")
    shown = look.evaluate("""() => {
      const view = gpucorrelate.opened();
      return view.grid.order.reduce((sum, i) => sum + view.path.length[i], 0);
    }""")
    assert shown == first["length_ns"]
    assert "segment" in look.page.locator("#chosen").inner_text()
    look.page.get_by_role("button", name="show all").click()
    assert look.evaluate("gpucorrelate.opened().grid.order.length") == len(request["segments"])


def test_the_claim_of_the_stall_shows_it(request_page, reports):
    look = request_page
    (request,) = reports.json("--slowest", "1")
    stall = request["verdict"]["stall"]
    look.page.locator(".verdict a").last.click()
    view = look.evaluate("gpucorrelate.opened().chart.view")
    start = request["arrival_ns"]
    assert view["from"] <= stall["start_ns"] - start < stall["end_ns"] - start <= view["to"]


def test_what_has_the_focus_is_seen(run):
    for selector in (".chart", "#requests .grid", ".theme"):
        run.page.locator(selector).focus()
        run.press("Shift")
        outline = run.evaluate(
            "one => getComputedStyle(document.querySelector(one)).outlineStyle", selector
        )
        assert outline == "solid" or selector == ".chart"
    run.press("Tab")
    assert run.evaluate("document.activeElement !== document.body")


def test_each_picture_has_words_and_a_table(run):
    look = run
    for selector in (".chart", ".grid", "svg", ".stack"):
        for one in look.page.locator(selector).all()[:8]:
            assert (one.get_attribute("role") or "") in ("application", "grid", "img")
            assert one.get_attribute("aria-label") is not None
    look.page.locator("#time summary").click()
    assert look.page.locator("#time table").count() == 2
    # Headings in order, one first; every table has a caption.
    levels = look.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert look.evaluate("[...document.querySelectorAll('table')].every(t => t.caption)")


def test_lists_sort_and_filter(run):
    look = run
    walls = "gpucorrelate.whole().grid.order.map(i => gpucorrelate.whole().columns.r_wall[i])"
    shown = look.evaluate(walls)
    assert shown == sorted(shown, reverse=True)
    look.page.locator("#requests").get_by_role("button", name="wall").click()
    assert look.evaluate(walls) == sorted(shown)
    name = look.page.locator("#requests .row[data-row] .id").first.inner_text()
    look.page.locator("#find").fill(name)
    look.frame()
    assert look.page.locator("#requests .row[data-row] .id").first.inner_text() == name
    assert look.evaluate("gpucorrelate.whole().grid.order.length") < len(shown)


def test_the_pointer_reads_what_is_under_it(request_page):
    look = request_page
    box = look.page.locator("canvas").bounding_box()
    at = look.evaluate("gpucorrelate.opened().chart.rows.find(r => r.label === 'critical path')")
    x, y = box["x"] + box["width"] * 0.6, box["y"] + at["top"] + at["height"] / 2
    look.page.mouse.move(x, y)
    look.frame()
    tip = look.page.locator(".tip")
    assert tip.is_visible()
    assert " at +" in tip.inner_text()
    look.page.mouse.down()
    look.page.mouse.up()
    assert look.page.locator(".panel").is_visible()
    look.page.mouse.move(x, y)
    look.page.mouse.down()
    look.page.mouse.move(x + 120, y, steps=4)
    look.page.mouse.up()
    view = look.evaluate("gpucorrelate.opened().chart.view")
    assert view["from"] > 0
