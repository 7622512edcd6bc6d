"""One browser for all tests of pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import can_browse, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not can_browse():
        pytest.skip("needs selenium, Chromium and its chromedriver")
    driver = chromium()
    yield driver
    driver.quit()
