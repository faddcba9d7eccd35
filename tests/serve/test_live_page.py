"""The live page in headless Chromium, against a server under load."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.serve.process import NAME, started


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile") as session:
        yield session


class Load(threading.Thread):
    """Asks for one answer after the other until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.enough = threading.Event()

    def run(self) -> None:
        body = {"model": NAME, "prompt": "Once upon a time", "max_tokens": 100, "temperature": 0}
        while not self.enough.is_set():
            with urllib.request.urlopen(f"{self.url}/v1/completions", json.dumps(body).encode(), timeout=60) as answer:  # noqa: S310
                answer.read()


def test_page_shows_what_the_server_does(browser: Any) -> None:
    """Figures and a swim lane that moves, without a console error; figures are those of the server."""
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait(browser, 60)

    def text(name: str) -> str:
        found: str = browser.find_element("id", name).text
        return found

    with started() as (_, url):
        loads = [Load(url) for _ in range(3)]
        for load in loads:
            load.start()
        try:
            browser.get(url)
            wait.until(lambda _: text("state") == "serving")
            wait.until(lambda _: text("tokens") not in ("-", "0.0") and "/" in text("between") and "/" in text("first"))
            wait.until(lambda _: int(browser.find_element("tag name", "canvas").get_attribute("data-drawn") or 0) > 8)
            assert text("running") in "123"
            assert text("waiting") == "0"
            assert text("slots").endswith("/ 3")
            assert int(text("blocks-text").split(" / ")[0]) > 0
            pixels = (
                "const c = document.querySelector('canvas'); return [...new Uint32Array("
                "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)].join()"
            )
            before = browser.execute_script(pixels)
            wait.until(lambda _: browser.execute_script(pixels) != before)
            assert browser.execute_script("return Number(document.body.dataset.steps)") > 10
        finally:
            for load in loads:
                load.enough.set()
            for load in loads:
                load.join(60)
        done = int(text("steps").split(" / ")[0])
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310
            scraped = answer.read().decode()
        counted = next(line for line in scraped.splitlines() if line.startswith('async_orch_steps_total{outcome="comp'))
        assert 10 < done <= float(counted.split()[-1])
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
