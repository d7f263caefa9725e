"""Takes the pictures of docs/console.md in a real browser: python scripts/console_pictures.py"""

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tealagents.testing.service import ServiceThread, offline_service

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/console"
AGENT = ROOT / "demos/approval"
SIZES = {"desk": {"width": 1180, "height": 740}, "phone": {"width": 390, "height": 780}}

_TOUR = """Here is what I would do, *before* anything is deleted:

1. **List** what is there, with `Files-list`.
2. Ask you about each file that is older than a year.
3. Delete only what you have approved.

| file | last opened | my advice |
|---|---|---|
| `notes.txt` | 3 years ago | delete |
| `holiday.jpg` | last week | keep |
"""
SCRIPT = {
    "rules": [
        {"when": "tidy up", "reply": {"text": _TOUR, "first_delay_ms": 40, "piece_delay_ms": 1}},
        {
            "when": "go ahead",
            "reply": {
                "text": "First I look what is there.",
                "tool_calls": [
                    {"name": "Files-list", "arguments": {}},
                    {"name": "Files-delete", "arguments": {"path": "notes.txt"}},
                ],
                "first_delay_ms": 60,
                "piece_delay_ms": 3,
            },
        },
        {
            "when": {"tool_result": True},
            "reply": {"text": "Done: `notes.txt` is gone, the others stay.", "first_delay_ms": 50},
        },
    ]
}


class Story:
    """The conversations that the pictures show."""

    def __init__(self, service: ServiceThread) -> None:
        with service.client("ada") as client:
            self._client = client
            self.known = self._talk("Getting to know each other", "My name is Ada and I live in Oslo.")
            self._say(self.known, "My favourite colour is green.")
            self._say(self.known, "What is my favourite colour?")
            first = self._checkpoints(self.known)[-1]
            client.post(f"/tasks/{self.known}/rollback", json={"checkpoint_id": first})
            self._say(self.known, "My favourite colour is deep red.")
            self._say(self.known, "What is my favourite colour?")
            self.one, self.other = (self._checkpoints(self.known)[place] for place in (2, 0))
            self.cleaning = self._talk("Spring cleaning", "How would you tidy up?")
            paused = self._say(self.cleaning, "Good, go ahead.")
            where = f"/requests/{paused['request_id']}/resume"
            client.post(where, json={"action": "approve", "reason": "I have a copy."})
            self.waiting = self._talk("One more file", 'call Files-delete {"path": "draft.md"}')

    def _talk(self, title: str, text: str) -> str:
        body = {"items": [{"content_type": "text", "content": text}], "metadata": {"title": title}}
        return str(self._client.post("", json=body).json()["task_id"])

    def _say(self, task: str, text: str) -> dict[str, str]:
        body = {"items": [{"content_type": "text", "content": text}], "task_id": task}
        answer: dict[str, str] = self._client.post("", json=body).json()
        return answer

    def _checkpoints(self, task: str) -> list[str]:
        return [
            each["checkpoint_id"] for each in self._client.get(f"/tasks/{task}/checkpoints").json()["items"]
        ]

    def views(self) -> dict[str, tuple[str, str]]:
        """The address of each view, and what is there once it can be taken."""
        return {
            "welcome": ("new", ".composer"),
            "conversation": (f"tasks/{self.cleaning}", ".turn-footer"),
            "approval": (f"tasks/{self.waiting}", ".pause"),
            "approvals": ("approvals", ".card"),
            "trace": (f"tasks/{self.cleaning}/trace", ".waterfall"),
            "prompt": (f"tasks/{self.known}/trace", ".waterfall"),
            "travel": (f"tasks/{self.known}/travel", ".node"),
            "compare": (f"compare/{self.known}/{self.one}/{self.known}/{self.other}", ".branch"),
            "audit": (f"tasks/{self.cleaning}/audit", ".verdict[data-state]"),
        }


def take(page: Page, url: str, story: Story, suffix: str) -> None:
    for name, (address, shown) in story.views().items():
        page.goto(f"{url}#/{address}")
        page.locator(shown).first.wait_for()
        if name == "approval":
            page.get_by_role("button", name="Edit the arguments").click()
            page.locator(".fields").wait_for()
        if name in ("trace", "prompt"):
            page.locator(".step-line").first.click()
        if name == "prompt":
            page.get_by_role("button", name="Show it").click()
            page.locator(".sent-part").last.wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=PICTURES / f"{name}-{suffix}.png")


def pictures(browser: Browser, service: ServiceThread) -> None:
    story, url = Story(service), f"{service.url}/console/"
    for size, viewport in SIZES.items():
        for theme in ("light", "dark"):
            context = browser.new_context(viewport=viewport, color_scheme=theme, timezone_id="UTC")
            page = context.new_page()
            page.goto(url)
            page.get_by_label("Your name").fill("ada")
            page.screenshot(path=PICTURES / f"sign-in-{size}-{theme}.png")
            page.get_by_role("button", name="Continue").click()
            take(page, url, story, f"{size}-{theme}")
            context.close()


def main() -> None:
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        sys.exit("There is no Chromium: apt-get install chromium-headless-shell")
    PICTURES.mkdir(exist_ok=True)
    env = {
        "TA_PLUGIN_MODULE": str(AGENT / "custom_plugins.py"),
        "TA_PLUGIN_CATALOG_FILE": str(AGENT / "catalogue.json"),
    }
    spec = {"name": "Janitor", "agent": {"plugins": ["Files"]}, "console": {"enabled": True}}
    with offline_service(SCRIPT, env, **spec) as (service, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pictures(browser, service)
        browser.close()
    print(json.dumps({path.name: path.stat().st_size for path in sorted(PICTURES.glob("*.png"))}, indent=1))


if __name__ == "__main__":
    main()
