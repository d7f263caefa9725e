"""What the console costs a browser: python -m benchmarks.console

A conversation of 2,000 messages is opened and scrolled through, an answer of 5,000 pieces is followed. A task
is what keeps the page from answering; its processor time counts, so that other work of the machine does not.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tealagents.testing.service import ServiceThread, offline_service

MESSAGES = 2000
PIECES = 5000
#: what must hold: seconds to open, milliseconds of the longest task
SECONDS_TO_OPEN = 1.0
LONGEST_TASK_MS = 100.0

_ANSWER = """Here is **what** I found, in a few lines:

1. the first of the things, with `code`
2. the second of them, with [a link](https://example.org/)

| name | value |
|---|---|
| one | 1 |
| two | 2 |

```python
print("and some code")
```
"""
#: scrolls by a window's height a frame, to the first message and back; the turns drawn, and most at once
_SCROLL = """async () => {
  const box = document.querySelector(".scroller");
  const seen = new Set();
  let most = 0;
  const to = async (place, by) => {
    while (true) {
      const turns = document.querySelectorAll(".turn[id]");
      turns.forEach((turn) => seen.add(turn.id));
      most = Math.max(most, turns.length);
      const before = box.scrollTop;
      box.scrollTop += by * box.clientHeight;
      await new Promise(requestAnimationFrame);
      if (box.scrollTop === before && document.querySelector(`[aria-posinset="${place}"]`)) return;
    }
  };
  await to(1, -1);
  await to(TURNS, 1);
  return [seen.size, most];
}""".replace("TURNS", str(MESSAGES // 2))


@contextmanager
def tasks(page: Page) -> Iterator[list[float]]:
    """The page's tasks meanwhile, each in milliseconds of its main thread's processor time."""
    found: list[float] = []
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline"])
    yield found
    events = json.loads(browser.stop_tracing())["traceEvents"]
    main = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    found += [
        each["tdur"] / 1000
        for each in events
        if each["name"] == "RunTask" and (each["pid"], each["tid"]) in main and "tdur" in each
    ]


def conversation(service: ServiceThread) -> str:
    """A task of `MESSAGES` messages; its id."""
    task: dict[str, str] = {}
    with service.client("ada") as client:
        for number in range(MESSAGES // 2):
            body = {"items": [{"content_type": "text", "content": f"Tell me of thing {number}."}], **task}
            task = {"task_id": client.post("", json=body).raise_for_status().json()["task_id"]}
    return task["task_id"]


def page_of(browser: Browser, service: ServiceThread) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{service.url}/console/")
    page.get_by_label("Your name").fill("ada")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("link", name="New conversation").wait_for()
    return page


def opening(page: Page, task: str) -> dict[str, Any]:
    """Seconds from a click to the newest message, the turns that were drawn at once, and the longest task."""
    took = page.evaluate(
        """async (task) => {
          const begun = performance.now();
          location.hash = `#/tasks/${task}`;
          while (!document.querySelector(".turn-footer")) await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        }""",
        task,
    )
    with tasks(page) as found:
        turns, drawn = page.evaluate(_SCROLL)
    assert turns == MESSAGES // 2, f"{turns} turns were on the page"
    return {"open_s": took / 1000, "turns_drawn_at_once": drawn, "longest_scrolling_ms": max(found)}


def streaming(page: Page) -> dict[str, Any]:
    """An answer of many pieces: whether all are there, and how long the page was kept from answering."""
    page.get_by_role("link", name="New conversation").click()
    page.get_by_role("textbox", name="Message").fill(f"pieces-{PIECES}@0.4ms")
    with tasks(page) as found:
        page.keyboard.press("Enter")
        page.locator(".turn-footer").wait_for(timeout=60_000)
    text = page.locator(".answer").inner_text()
    numbers = text.split("\n")[0].split()
    assert numbers == [str(n) for n in range(1, PIECES + 1)], f"{len(numbers)} pieces are on the page"
    return {"pieces": len(numbers), "longest_streaming_ms": max(found)}


def measured() -> dict[str, Any]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    script = {"rules": [{"when": "thing", "reply": {"text": _ANSWER}}]}
    with offline_service(script, console={"enabled": True}) as (service, _), sync_playwright() as playwright:
        task = conversation(service)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = page_of(browser, service)
        found = {**opening(page, task), **streaming(page)}
        browser.close()
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = measured()
    for name, value in found.items():
        print(f"{name:24} {value:10.2f}")
    longest = max(found["longest_scrolling_ms"], found["longest_streaming_ms"])
    if found["open_s"] > SECONDS_TO_OPEN or longest > LONGEST_TASK_MS:
        sys.exit(f"more than {SECONDS_TO_OPEN} s to open, or a task of more than {LONGEST_TASK_MS} ms")


if __name__ == "__main__":
    main()
