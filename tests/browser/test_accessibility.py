"""Every view is accessible: axe checks each, in light mode on a desktop and in dark mode on a phone."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from tabs import Tab, Tabs, axe

from tealagents.testing.service import ServiceThread

NODE_MODULES = Path(__file__).parents[2] / ".tools/node/node_modules"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def task(service: ServiceThread) -> dict[str, str]:
    """One task with a bit of everything, and one that waits for a decision."""
    with service.client("ada") as client:

        def say(text: str, **more: Any) -> dict[str, Any]:
            body = {"items": [{"content_type": "text", "content": text}], **more}
            answer: dict[str, Any] = client.post("", json=body).json()
            return answer

        first = say("My name is **Ada**.\n\n- one\n- two", metadata={"title": "A bit of everything"})
        task = first["task_id"]
        say("call Files-list {}", task_id=task)
        client.post(f"/tasks/{task}/rollback", json={"checkpoint_id": first["request_id"]})
        say('call Files-echo {"text": "| a | b |\\n|---|---|\\n| 1 | `two` |"}', task_id=task)
        fork = client.post(f"/tasks/{task}/fork", json={}).json()["task_id"]
        paused = say('call Files-delete {"path": "x"} and call Files-delete {"path": "y"}')["task_id"]
    return {"task": task, "fork": fork, "paused": paused}


#: what is unfolded in a view, and what is there then
MORE = {
    ".call summary": ".call[open]",
    ".step-line": ".step-details",
    ".sent .quiet": ".sent-part",
    ".shown-call .quiet": ".fields",
}

#: nothing fades any more: what is half there has half its contrast
_SETTLED = """() => document.getAnimations().every((each) =>
  each.playState !== "running" || each.effect.getTiming().iterations === Infinity)"""

_DOCUMENT_SCROLLS = """(() => {
  const {scrollWidth, scrollHeight} = document.documentElement;
  return scrollWidth > innerWidth || scrollHeight > innerHeight;
})()"""

#: fields whose border is hard to see on one of its sides, which axe does not look at
_FAINT = """(() => {
  const channel = (c) => (c <= 10 ? c / 3294 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => channel(Number(c)));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (...colours) => {
    const [dark, bright] = colours.map(light).sort((one, other) => one - other);
    return (bright + 0.05) / (dark + 0.05);
  };
  const behind = (element) => {
    const {backgroundColor} = getComputedStyle(element);
    return backgroundColor === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : backgroundColor;
  };
  const isFaint = (field) => {
    const {borderTopColor, borderTopWidth} = getComputedStyle(field);
    const sides = [behind(field), behind(field.parentElement)];
    return borderTopWidth !== "0px" && sides.some((side) => contrast(borderTopColor, side) < 3);
  };
  const fields = ".composer, select, textarea, input:not([type=checkbox], [type=file])";
  const seen = [...document.querySelectorAll(fields)].filter((field) => field.checkVisibility());
  return seen.filter(isFaint).map((field) => `faint border: ${field.outerHTML.slice(0, 120)}`);
})()"""


def _findings(tab: Tab, source: str) -> list[str]:
    """What axe calls serious or critical, each with the element, and fields that are hard to see."""
    tab.page.wait_for_function(_SETTLED)
    if tab.page.evaluate("typeof axe === 'undefined'"):  # it stays while the page does
        tab.page.evaluate(source)
    found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    faint: list[str] = tab.page.evaluate(_FAINT)
    return faint + [
        f"{each['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(
    tabs: Tabs, service: ServiceThread, task: dict[str, str], size: dict[str, int], theme: str
) -> None:
    """Sign-in, conversations, a pause and its form, approvals, trace, tree, audit, details, branches."""
    source = axe(NODE_MODULES)
    tab = tabs.open(f"{service.url}/console/", viewport=size, color_scheme=theme)
    tab.page.goto(tab.console)
    expect(tab.page.get_by_label("Your name")).to_be_visible()
    found = {"sign-in": _findings(tab, source)}
    tab.page.get_by_label("Your name").fill("ada")
    tab.button("Continue").click()
    views = {
        "": ".task",
        "new": ".composer",
        f"tasks/{task['task']}": ".turn-footer",
        f"tasks/{task['paused']}": ".pause",
        f"tasks/{task['task']}/trace": ".waterfall",
        f"tasks/{task['task']}/travel": ".node",
        f"tasks/{task['task']}/audit": ".verdict[data-state]",
        f"tasks/{task['task']}/details": "#metadata",
        f"compare/{task['task']}/current/{task['fork']}/current": ".branch",
        "approvals": ".card",
    }
    for view, shown in views.items():
        tab.open(view)
        expect(tab.page.locator(shown).first).to_be_visible()
        for more, then in MORE.items():
            if tab.page.locator(more).count():
                tab.page.locator(more).first.click()
                expect(tab.page.locator(then).first).to_be_visible()
        found[view] = _findings(tab, source)
        if tab.page.evaluate(_DOCUMENT_SCROLLS):
            found[view].append("the document scrolls, and with it what is to stay in place")
    assert {view: findings for view, findings in found.items() if findings} == {}


def test_with_colours_of_the_system_what_is_current_can_be_read(
    tabs: Tabs, service: ServiceThread, task: dict[str, str]
) -> None:
    """All of a conversation's entry has the colour of its title; buttons and messages have a frame."""
    ada = tabs.signed_in(f"{service.url}/console/", "ada", forced_colors="active").open("tasks", task["task"])
    style = "(each) => getComputedStyle(each)"
    current = ada.page.locator(".task[aria-current]")
    assert current.locator("time").evaluate(f"{style}.color") == current.evaluate(f"{style}.color")
    for framed in (ada.button("Send"), ada.page.locator(".bubble").first):
        assert framed.evaluate(f"{style}.borderTopWidth") == "1px"


def test_a_pause_is_announced(tabs: Tabs, service: ServiceThread) -> None:
    """One who does not see it hears that a decision is needed, as that an answer is complete."""
    ada = tabs.signed_in(f"{service.url}/console/", "ada")
    ada.say('call Files-delete {"path": "heard.txt"}')
    expect(ada.page.locator("[data-live] .visually-hidden[role=status]")).to_have_text(
        "A decision is needed."
    )
