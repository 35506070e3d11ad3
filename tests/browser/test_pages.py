# SPDX-License-Identifier: Apache-2.0
"""What a page shows is what the JSON report says, and it complains of nothing and asks nobody."""

from __future__ import annotations

import random

import pytest

from gpucorrelate.correlator.report import units
from tests.browser.chromium import looking

pytestmark = pytest.mark.browser

PAGES = [(), ("--slowest", "1"), ("--slowest", "4"), ("--step", "3")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize("options", PAGES)
def test_it_renders_without_a_complaint_and_loads_nothing(
    reports, browser, options, width, scheme
):
    with looking(browser, reports.page(*options), width=width, scheme=scheme) as look:
        assert look.page.locator("h1").count() == 1
        assert look.page.locator("canvas").count() == 1
        assert _inked(look) > 0.02
        # Nothing is wider than the window: what is scrolls by itself.
        assert look.evaluate("document.documentElement.scrollWidth") <= width
        assert look.complaints == []
        assert look.asked == []


def _inked(look) -> float:
    """Share of the picture's points that are of another colour than its first one."""
    share = look.evaluate("""() => {
      const canvas = document.querySelector("canvas");
      const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let other = 0;
      for (let i = 0; i < data.length; i += 4) {
        other += data[i] !== data[0] || data[i + 1] !== data[1] || data[i + 2] !== data[2];
      }
      return other / (data.length / 4);
    }""")
    return float(share)


def test_dark_and_light_differ_and_the_switch_wins_over_the_system(reports, browser):
    background = "getComputedStyle(document.body).backgroundColor"
    with looking(browser, reports.page(), scheme="dark") as look:
        dark = look.evaluate(background)
        look.page.get_by_role("button", name="theme auto").click()
        light = look.evaluate(background)
        look.page.get_by_role("button", name="theme light").click()
        assert look.evaluate(background) == dark
        assert light != dark
        assert look.complaints == []
    with looking(browser, reports.page(), scheme="light") as look:
        assert look.evaluate(background) == light


def test_the_figures_of_a_recording_are_those_of_its_json(reports, browser):
    summary = reports.json()
    with looking(browser, reports.page()) as look:
        fact = lambda name: look.value(f'[data-fact="{name}"]')  # noqa: E731
        assert fact("requests") == summary["requests"]
        assert fact("steps") == summary["steps"]
        assert fact("tokens out") == summary["tokens_out"]
        for name, key in (("TTFT", "ttft_ns"), ("ITL", "itl_ns")):
            assert fact(f"{name} p50") == summary[key]["p50"]
            assert fact(f"{name} p99") == summary[key]["p99"]
            spread = f'[data-spread="{name}"]'
            for quantile in ("p50", "p90", "p99", "max"):
                shown = look.value(f'{spread} [data-quantile="{quantile}"]')
                assert shown == summary[key][quantile]
        by_category, by_phase = (
            look.page.locator("#shares table").nth(k).locator("tbody tr") for k in (0, 1)
        )
        assert _pairs(by_category) == summary["by_category"]
        assert _pairs(by_phase) == summary["by_phase"]
        actors = _pairs(look.page.locator("#actors tbody tr"))
        assert actors == summary["actors"]
        counts = look.page.locator("#ledger tbody tr")
        lines = {line["name"]: line["count"] for line in summary["ledger"]["lines"]}
        assert _pairs(counts) == lines


def _pairs(rows) -> dict[str, int]:
    """Name and number of each row of a table."""
    return {
        row.locator("th").inner_text() or row.locator("th").text_content(): int(
            row.locator("[data-value]").first.get_attribute("data-value")
        )
        for row in rows.all()
    }


def test_what_latencies_are_made_of_sums_to_them(reports, browser):
    with looking(browser, reports.page()) as look:
        spread = look.evaluate(
            "JSON.parse(document.getElementById('head').textContent).run.spread"
        )
    requests = reports.json("--slowest", "1000")
    ttft = sum(one["ttft_ns"] for one in requests if one["ttft_ns"] is not None)
    assert sum(band["length_ns"] for band in spread["TTFT"]["bands"]) == ttft
    for name in ("TTFT", "ITL"):
        for band in spread[name]["bands"]:
            assert sum(ns for _, ns in band["by_category"]) == band["length_ns"]
        assert sum(band["count"] for band in spread[name]["bands"]) == spread[name]["n"]
        assert sum(spread[name]["histogram"]["counts"]) == spread[name]["n"]


def test_the_sums_over_time_are_all_of_the_requests_time(reports, browser):
    with looking(browser, reports.page()) as look:
        made = look.evaluate("""() => {
          const {categories} = JSON.parse(document.getElementById("head").textContent);
          const sums = categories.map(() => 0);
          gpucorrelate.whole().columns.bin_category.forEach((ns, at) => {
            sums[at % sums.length] += ns;
          });
          return Object.fromEntries(categories.map(([name], at) => [name, sums[at]]));
        }""")
    by_category = reports.json()["by_category"]
    assert {name: ns for name, ns in made.items() if ns} == by_category


def test_a_request_is_the_same_in_its_page_and_its_json(reports, browser):
    (request,) = reports.json("--slowest", "1")
    with looking(browser, reports.page("--slowest", "1")) as look:
        _same_request(look, request)


def test_every_request_opens_from_the_recordings_page(reports, browser):
    requests = {one["request_id"]: one for one in reports.json("--slowest", "1000")}
    with looking(browser, reports.page()) as look:
        shown = look.evaluate("gpucorrelate.whole().columns.r_at.length")
        assert shown == reports.json()["requests"]
        for at in (0, shown // 2, shown - 1):
            look.evaluate(f"location.hash = '#r={at}'")
            look.opened_any()
            name = look.page.locator("[data-document]").get_attribute("data-document") or ""
            look.opened(name)
            if name in requests:
                _same_request(look, requests[name], in_full=False)
            look.evaluate("location.hash = ''")
            look.opened("run")
        assert look.complaints == []


def _same_request(look, request, *, in_full=True):
    fact = lambda name: look.value(f'[data-fact="{name}"]')  # noqa: E731
    assert fact("wall") == request["wall_ns"]
    assert fact("TTFT") == request["ttft_ns"]
    assert fact("tokens in") == request["tokens_in"]
    assert fact("tokens out") == request["tokens_out"]
    assert fact("unknown") == request["verdict"]["unknown_ns"]
    assert look.page.locator(".verdict").inner_text() == request["verdict"]["text"]
    found = look.evaluate("""() => {
      const {path} = gpucorrelate.opened();
      const rows = [];
      for (let i = 0; i < path.many; i += 1) rows.push(gpucorrelate.segment(path, i));
      return rows;
    }""")
    start, wanted = request["arrival_ns"], request["segments"]
    assert [
        (row["start"] + start, row["end"] + start, row["category"], row["actor"], row["phase"],
         row["span"], row["step"], row["slack"])
        for row in found
    ] == [
        (one["start_ns"], one["end_ns"], one["category"], one["actor"], one["phase"],
         one["span"] or "", one["step"], one["slack_ns"])
        for one in wanted
    ]  # fmt: skip
    causes = [one["cause"] for one in wanted]
    for row, cause in zip(found, causes, strict=True):
        assert bool(row["cause"]) == (cause is not None)
        if cause is not None:
            assert cause["verb"].rstrip(":") in row["cause"]
            assert (cause["actor"] or "") in row["cause"]
    if in_full:
        assert [row["evidence"] for row in found] == [len(one["evidence"]) for one in wanted]
    table = look.page.locator("#shares table", has_text="by category").locator("tbody tr")
    sums: dict[str, int] = {}
    for one in wanted:
        sums[one["category"]] = sums.get(one["category"], 0) + one["end_ns"] - one["start_ns"]
    assert _pairs(table) == sums


def test_a_step_is_the_same_in_its_page_and_its_json(reports, browser):
    step = reports.json("--step", "3")
    with looking(browser, reports.page("--step", "3")) as look:
        assert look.value('[data-fact="wall"]') == step["wall_ns"]
        assert look.value('[data-fact="tokens"]') == step["tokens"]
        assert look.evaluate("gpucorrelate.opened().path.many") == len(step["segments"])


def test_lengths_and_shares_read_as_in_every_report(reports, browser):
    chance = random.Random(1)
    lengths = [0, 1, 999, 1000, 9_995, 999_949, 999_950, 999_999, 10**6, 5 * 10**17 + 123]
    lengths += [int(10 ** chance.uniform(0, 17)) for _ in range(2_000)]
    wholes = [(chance.randrange(0, n + 1), n) for n in lengths if n] + [(1, 400), (3, 400)]
    with looking(browser, reports.page("--step", "3")) as look:
        for digits in (3, 4, 7):
            shown = look.evaluate(
                f"all => all.map(one => gpucorrelate.duration(one, {digits}))", lengths
            )
            assert shown == [units.duration(one, digits) for one in lengths]
        shown = look.evaluate("all => all.map(([a, b]) => gpucorrelate.share(a, b))", wholes)
        assert shown == [units.share(*one) for one in wholes]


def test_the_first_screen_says_where_the_time_went_and_shows_it(reports, browser):
    with looking(browser, reports.page("--slowest", "1")) as look:
        for selector in (".verdict", ".facts", "canvas"):
            box = look.page.locator(selector).first.bounding_box()
            assert box is not None
            assert box["y"] < 400


def test_without_its_script_it_still_says_the_verdict(reports, browser):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(reports.page("--slowest", "1").as_uri())
        (request,) = reports.json("--slowest", "1")
        assert page.locator(".verdict").inner_text() == request["verdict"]["text"]
        assert "need JavaScript" in page.locator("noscript").inner_text()
    finally:
        context.close()


def test_printed_it_keeps_the_words_and_leaves_out_the_buttons(reports, browser):
    with looking(browser, reports.page("--slowest", "1"), scheme="dark") as look:
        look.page.emulate_media(media="print")
        assert look.page.locator(".verdict").is_visible()
        assert not look.page.locator(".theme").is_visible()
        assert look.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert len(look.page.pdf()) > 10_000
