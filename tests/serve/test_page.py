"""The page in a real browser: text in colours, the slider heard while text streams."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marslm.models.loading import MarsModel
from serve.conftest import Running, run_server

pytestmark = pytest.mark.clients
api = pytest.importorskip("playwright.sync_api")

PICTURES = os.environ.get("MARSLM_PICTURES")
"""A folder for screenshots, to be looked at."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: Playwright's own, or the system's where that cannot be had."""
    with api.sync_playwright() as playwright:
        yield (
            browser := playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
        )
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab that may talk to loopback alone, and in which no script may fail."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    errors: list[str] = []
    context.route(
        lambda url: not url.startswith(("http://127.0.0.1", "data:")), lambda route: route.abort()
    )
    context.on(
        "requestfailed", lambda r: errors.append(r.url) if "127.0.0.1" not in r.url else None
    )
    tab = context.new_page()
    tab.set_default_timeout(60_000)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    yield tab
    context.close()
    assert errors == []


@pytest.fixture(scope="module")
def served(fitted_model: MarsModel) -> Iterator[Running]:
    with run_server(fitted_model) as running:
        yield running


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def ask(page: Any, prompt: str, length: int) -> None:
    page.fill("#length", str(length))
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")


def figure(page: Any, name: str, panel: int = 0) -> float:
    text = page.locator(f".panel >> nth={panel} >> [data-figure={name}]").inner_text()
    return float(re.match(r"[\d.]+", text)[0])  # type: ignore[index]


def test_a_chat_shows_runs_and_figures(page: Any, served: Running) -> None:
    page.goto(served.url)
    ask(page, "abcdefgh", 60)
    page.wait_for_selector("#send:visible")
    assert page.inner_text("#model") == "letters"
    coloured = page.locator(".panel .text span[class^=run-]")
    assert coloured.count() > 1
    assert "tokens in one forward" in coloured.first.get_attribute("title")
    assert figure(page, "rate") > 1
    shares = page.locator(".positions div").all_inner_texts()
    assert shares[0].startswith("100%")
    assert len(shares) > 1
    picture(page, "chat")
    ask(page, "and more", 10)  # the chat goes on: both turns and the answer are sent
    page.wait_for_selector("#send:visible")
    assert page.locator(".panel").count() == 2


def test_the_slider_is_heard_while_text_streams(page: Any, served: Running) -> None:
    page.goto(served.url)
    page.select_option("#strategy", "mars")
    page.fill("#tau", "1")
    knob = served.engine.speed
    while (knob.strategy, knob.tau) != ("mars", 1):  # the test's own timeout ends it
        page.wait_for_timeout(20)  # the page's requests pass through this thread
    ask(page, "abcd", 220)
    page.wait_for_function("document.querySelectorAll('.panel .text span').length > 5")
    assert page.locator(".text span[class^=run-]").count() == 0
    page.fill("#tau", "0.05")
    page.wait_for_selector("#send:visible")
    assert page.inner_text("#tau-value") == "0.05"
    assert page.locator(".text span[class^=run-]").count() > 0
    picture(page, "slider")
    served.engine.speed.strategy, served.engine.speed.tau = "lossless", 0.9


def test_three_strategies_side_by_side(page: Any, served: Running) -> None:
    page.goto(served.url)
    page.click("[data-view=compare]")
    ask(page, "abcdefgh", 60)
    page.wait_for_selector("#send:visible")
    assert page.locator(".panel h2").all_inner_texts() == ["ar", "mars", "lossless"]
    texts = page.locator(".panel .text").all_inner_texts()
    assert texts[0] == texts[2] != ""
    assert figure(page, "rate", 0) == 1
    assert figure(page, "rate", 2) > 1
    picture(page, "compare")


def test_stop_frees_the_slot(page: Any, served: Running) -> None:
    page.goto(served.url)
    ask(page, "abcd", 4000)
    page.wait_for_function("document.querySelectorAll('.panel .text span').length > 2")
    page.click("#stop")
    page.wait_for_selector("text=(stopped)")
    served.wait_until_idle()


def test_what_is_wrong_is_said(page: Any, fitted_model: MarsModel) -> None:
    with run_server(fitted_model, api_key="sesame") as guarded:
        page.goto(guarded.url)
        page.wait_for_selector("text=the API key is missing or wrong")
        page.fill("#key", "sesame")
        page.press("#key", "Tab")
        page.wait_for_function("document.getElementById('model').textContent === 'letters'")
        ask(page, "a" * 400, 10)
        page.wait_for_selector("text=beyond the limit of 256")
        picture(page, "error")
