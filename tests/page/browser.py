"""Debian's Chromium, unpacked and not installed, and driven by Debian's chromedriver.

One rule: what is waited for has a deadline, and what the browser complains of is kept for the test
to see.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

PROGRAMS = Path(__file__).with_name("programs.sh")
SOON_S = 30.0  # far above what anything takes, however busy the machine
DESKTOP, PHONE = (1360, 900), (360, 740)
_LANGUAGE = "en-GB"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--password-store=basic",
)


def why_not() -> str:
    """Why there is no browser here; empty where there is."""
    needed = [name for name in ("apt-get", "dpkg", "npm", "openssl") if shutil.which(name) is None]
    return f"no {', '.join(needed)} here to fetch Chromium with" if needed else ""


@cache
def folder() -> Path:
    """Where everything was unpacked; fetched the first time."""
    said = subprocess.run([PROGRAMS], stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    return Path(said.stdout.splitlines()[-1])


def axe() -> str:
    """axe-core's program."""
    return (folder() / "package" / "axe.min.js").read_text()


def _environment() -> dict[str, str]:
    libraries = folder() / "usr" / "lib" / "x86_64-linux-gnu"
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'pulseaudio'}",
        "FONTCONFIG_FILE": str(folder() / "fonts.conf"),
    }


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def as_new(self) -> None:
        """Nothing is open, kept or complained of."""
        self.open("about:blank")
        self.driver.execute_cdp_cmd(
            "Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"}
        )
        self.size(*DESKTOP)
        self.colours("light")
        self.complaints()
        self.asked()

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)

    def until(self, script: str, what: str) -> Any:
        """Looks until the script gives something true."""
        waiting = WebDriverWait(self.driver, SOON_S, poll_frequency=0.05)
        return waiting.until(
            lambda _driver: self.script(script), f"not within {SOON_S:g} s: {what}"
        )

    def text(self, selector: str = "body") -> str:
        return str(self.script("return document.querySelector(arguments[0]).innerText", selector))

    def size(self, width: int, height: int) -> None:
        """Of what is shown, also where no window may be so narrow."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        """scheme: `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def keys(self, keys: str) -> None:
        """As somebody types them, wherever the focus is."""
        ActionChains(self.driver).send_keys(keys).perform()

    def select_all(self) -> None:
        ActionChains(self.driver).key_down(Keys.CONTROL).send_keys("a").key_up(
            Keys.CONTROL
        ).perform()

    def complaints(self) -> list[str]:
        """What stands in the console since it was looked at last."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def asked(self) -> list[str]:
        """The addresses of all requests since they were looked at last."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [str(one["request"]["url"]) for one in sent]

    def violations(self, axe: str) -> list[Mapping[str, Any]]:
        """What axe-core finds wrong here, serious and critical."""
        self.script(axe)
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']})"
            ".then((all) => done(all.violations), (error) => done(String(error)))"
        )
        assert isinstance(found, list), found
        return [one for one in found if one["impact"] in ("serious", "critical")]

    def shoot(self, file: Path) -> None:
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        file.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, with nothing kept from before."""
    data = tempfile.mkdtemp(prefix="mpsd-chromium-")
    options = webdriver.ChromeOptions()
    options.binary_location = str(folder() / "usr" / "lib" / "chromium" / "chromium")
    for flag in (*_FLAGS, f"--user-data-dir={data}", "--lang=en-GB"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"intl.accept_languages": "en-GB"})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(str(folder() / "usr" / "bin" / "chromedriver"), env=_environment())
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(SOON_S)
        driver.set_script_timeout(SOON_S)
        made = Browser(driver)
        made.size(*DESKTOP)
        yield made
    finally:
        driver.quit()
        shutil.rmtree(data, ignore_errors=True)
