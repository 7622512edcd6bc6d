"""A real browser for the tests of pages, and what hostile names look like."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

HOSTILE = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    '"><svg onload=window.hacked=1>',
    "\u2028window.hacked=1//\u2029",
)
NAMES = tuple(text for text in HOSTILE if text.isprintable())  # what results may be named
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
DRIVER = shutil.which("chromedriver")


def can_browse() -> bool:
    return bool(CHROMIUM and DRIVER and importlib.util.find_spec("selenium"))


def chromium() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def opened(browser: Any, page: Path, address: str = "") -> None:
    """Open a page, and wait until its script has run: a busy browser answers early.

    Args:
        address: what follows # in the address.
    """
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#{address}" if address else page.as_uri())
    drawn = "return document.readyState === 'complete' && !!document.querySelector('main h1')"
    awaited(browser, drawn)


def awaited(browser: Any, script: str, *arguments: object) -> None:
    """Wait until a script answers that something is so."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(script, *arguments))


def texts(browser: Any, selector: str) -> list[str]:
    """Texts of what is visible."""
    script = (
        "return [...document.querySelectorAll(arguments[0])]"
        ".filter(e => e.checkVisibility({visibilityProperty: true})).map(e => e.textContent)"
    )
    found: list[str] = browser.execute_script(script, selector)
    return found


def press(browser: Any, selector: str) -> None:
    browser.find_element("css selector", selector).click()


def choose(browser: Any, selector: str, value: str) -> None:
    press(browser, f"{selector} option[value='{value}']")


def asked_for(browser: Any) -> list[str]:
    """Addresses that pages asked for since the last call."""
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in sent
        if message["method"] == "Network.requestWillBeSent"
    ]
