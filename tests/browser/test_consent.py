"""A tool server that wants the user's own authorization, given in the browser."""

from collections.abc import Iterator

import pytest
from oauth_setup import Provider, protected
from playwright.sync_api import expect
from tabs import Tabs

from tealagents.llm.offline import OfflineModel
from tealagents.testing.servers import free_port
from tealagents.testing.service import ServiceThread, agent_config


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def connected(provider: Provider) -> Iterator[ServiceThread]:
    """A service with a protected tool server."""
    port = free_port()
    with protected(provider) as url, OfflineModel() as model:
        server = {"name": "secure", "url": url, "trust_level": "trusted"}
        env = {
            "TA_AUTH": "mock",
            "TA_BASE_URL": model.base_url,
            "TA_API_KEY": "offline-key",
            "TA_PUBLIC_URL": f"http://127.0.0.1:{port}",
        }
        config = agent_config(agent={"mcp_servers": [server]}, console={"enabled": True})
        with ServiceThread(config, env, port=port) as running:
            yield running


def test_a_consent_link_is_opened(tabs: Tabs, connected: ServiceThread, provider: Provider) -> None:
    """It leads to the provider and back in a page of its own, which cannot reach the console; then the call
    is approved and runs as the user."""
    tab = tabs.signed_in(f"{connected.url}/console/", "ada", recorded=True)
    tab.say("call secure-connect {}")
    link = tab.link("Authorize secure")
    provider.user = "Ada"
    with tab.context.expect_page() as opening:
        link.click()
    there = opening.value
    expect(there.get_by_text("secure is authorized. Go back to the conversation")).to_be_visible()
    assert there.evaluate("opener === null && document.referrer === ''")
    there.close()
    tab.button("Approve").click()
    expect(tab.page.locator(".answer")).to_contain_text("These tools can be called now")
    expect(tab.page.locator(".turn-footer")).to_have_count(1)  # until it has ended, a message is refused
    tab.say("call secure-whoami {}")
    expect(tab.page.locator(".answer").last).to_contain_text("Ada")
    assert provider.calls == ["Ada"]
    assert tab.strangers() == []
