# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a screen, and a page in it with everything that it complained of."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

#: Nothing is updated, synchronised or asked of anybody.
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
#: A busy machine starts a browser slowly; what hangs fails all the same.
_PATIENCE_MS = 120_000
_AGAIN_MS = 20


def executable() -> str | None:
    """Where Chromium is; ``GPUCORRELATE_CHROMIUM`` names another one."""
    return os.environ.get("GPUCORRELATE_CHROMIUM") or shutil.which("chromium")


def missing_browser() -> str:
    """Why no page can be looked at here; empty where one can."""
    if executable() is None:
        return "Chromium is not installed (Debian's package chromium; scripts/browser_packages.sh)"
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (pip install playwright; no browser of its own needed)"
    return ""


@dataclass
class Look:
    """A page that is open, what it logged, and whatever it asked for beside its own file."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def evaluate(self, script: str, argument: object = None) -> Any:
        """The value of an expression or function in the page."""
        return self.page.evaluate(script, argument)

    def value(self, selector: str) -> int | None:
        """The number behind the one that an element shows; ``None`` unknown."""
        text = self.page.locator(selector).first.get_attribute("data-value")
        return int(float(text)) if text else None

    def values(self, selector: str) -> list[int]:
        """The numbers behind all that are shown."""
        found = self.page.locator(f"{selector} [data-value]").all()
        return [int(float(one.get_attribute("data-value") or "-1")) for one in found]

    def press(self, *keys: str) -> None:
        """Keys one after another, to whatever has the focus."""
        for key in keys:
            self.page.keyboard.press(key)

    def frame(self) -> None:
        """Waits until what was asked for is drawn."""
        self.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def until(self, script: str, argument: object = None) -> None:
        """Waits until an expression or function holds.

        Playwright's own way evaluates a string within the page, which the page's policy forbids.
        """
        end_s = time.monotonic() + _PATIENCE_MS / 1000
        while not self.evaluate(script, argument):
            assert time.monotonic() < end_s, f"never so: {script}"
            self.page.wait_for_timeout(_AGAIN_MS)

    def opened(self, what: str) -> None:
        """Waits until a request or step, or what the page begins with ("run"), is shown."""
        self.until(
            "what => document.querySelector('[data-document]')?.dataset.document === what", what
        )
        self.frame()

    def opened_any(self) -> None:
        """Waits until some request or step is shown."""
        self.until("gpucorrelate.opened() !== null")
        self.frame()


@contextlib.contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser with nobody's data in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), args=_ARGUMENTS, timeout=_PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def looking(
    browser: Browser, path: Path, *, width: int = 1440, scheme: Any = "light", at: str = ""
) -> Iterator[Look]:
    """Opens a file and waits until it says that it is ready."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(_PATIENCE_MS)
    try:
        page = context.new_page()
        look = Look(page)
        page.on("console", lambda message: look.complaints.append(message.text))
        page.on("pageerror", lambda error: look.complaints.append(str(error)))
        page.on("request", lambda request: look.asked.append(request.url))
        page.goto(path.as_uri() + at)
        page.wait_for_selector("html[data-ready]", state="attached")
        look.asked.remove(path.as_uri() + at)
        look.frame()
        yield look
    finally:
        context.close()
