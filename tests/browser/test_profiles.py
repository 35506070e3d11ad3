# SPDX-License-Identifier: Apache-2.0
"""Pages of recorded GPU profiles: the same numbers as the JSON report's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucorrelate.cli import main
from tests.browser.chromium import looking
from tests.browser.conftest import Reports

pytestmark = [pytest.mark.browser, pytest.mark.traces]

TRACES = [
    "vllm-eager-prefill-b200.json.gz",
    "nsys-2proc-h100.sqlite",
    "hta-ddp-dense-v100.json.gz",
]


def _folder() -> Path:
    root = Path(__file__).resolve().parents[3]
    return Path(os.environ.get("GPUCORRELATE_TRACES") or root / "shared" / "traces")


@pytest.fixture(scope="module", params=TRACES)
def profile(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    target = folder / "profile.gpcf"
    assert main.run(["import", str(_folder() / request.param), "-o", str(target)]) == 0
    return Reports(target, folder)


def test_a_profile_is_the_same_in_its_page_and_its_json(profile, browser):
    whole = profile.json()
    with looking(browser, profile.page()) as look:
        assert look.value('[data-fact="steps"]') == len(whole["steps"])
        assert look.value('[data-fact="GPU busy"]') == whole["gpu_busy_ns"]
        rows = look.page.locator("#shares table").first.locator("tbody tr").all()
        shown = {
            row.locator("th").inner_text(): int(
                row.locator("[data-value]").first.get_attribute("data-value") or -1
            )
            for row in rows
        }
        assert shown == whole["by_category"]
        assert (look.complaints, look.asked) == ([], [])


def test_the_slowest_step_is_the_same_in_its_page_and_its_json(profile, browser):
    (step,) = profile.json("--slowest", "1")
    with looking(browser, profile.page("--slowest", "1")) as look:
        assert look.page.locator(".verdict").inner_text() == step["verdict"]["text"]
        assert look.value('[data-fact="wall"]') == step["wall_ns"]
        assert look.evaluate("gpucorrelate.opened().path.many") == len(step["segments"])
        # The busy rows hold all work of the streams within the step, so at least the step's own.
        drawn = look.evaluate("""() => {
          const {one} = gpucorrelate.opened();
          return one.streams.map((stream, at) =>
            [stream.busy_ns, one.columns[`stream${at}`].reduce((a, b) => a + b, 0)]);
        }""")
        assert drawn
        assert all(said == summed for said, summed in drawn)
        assert sum(said for said, _ in drawn) >= step["gpu_busy_ns"] or len(drawn) == 6
        assert (look.complaints, look.asked) == ([], [])
