"""Azure OpenAI: its paths, and how it is given a key."""

import openai
import pytest
from llm_setup import KEY, client, events, text_of

from tealagents.llm.addressing import azure_url, dated_azure_url, own_authorization
from tealagents.llm.offline import OfflineModel
from tealagents.llm.openai_chat import OpenAIChatOptions


@pytest.mark.parametrize(
    ("base_url", "azure"),
    [
        ("https://mine.openai.azure.com", True),
        ("https://mine.openai.azure.us/", True),
        ("https://mine.services.ai.azure.com/openai/v1", True),
        ("https://api.openai.com/v1", False),
        ("https://openai.azure.com.example.com", False),
        ("http://127.0.0.1:8000/v1", False),
    ],
)
def test_azure_is_known_by_its_hosts(base_url: str, azure: bool) -> None:
    """By the end of the host's name."""
    options = OpenAIChatOptions(model="m", base_url=base_url, api_key=KEY)
    assert options.is_azure is azure
    assert options.provider == ("azure.ai.openai" if azure else "openai")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://mine.openai.azure.com", "https://mine.openai.azure.com/openai/v1"),
        ("https://mine.openai.azure.com/openai/v1", "https://mine.openai.azure.com/openai/v1"),
    ],
)
def test_the_endpoint_alone_is_enough(endpoint: str, url: str) -> None:
    """The path of the undated API is added where there is none."""
    assert azure_url(endpoint) == url


def test_a_deployment_is_one_segment_of_the_path() -> None:
    """Whatever it is called."""
    assert dated_azure_url("https://x", "a/b c") == "https://x/openai/deployments/a%2Fb%20c"
    assert dated_azure_url("https://x", None) == "https://x/openai"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_dated_api_is_called_by_its_deployment(stream: bool) -> None:
    """`/openai/deployments/NAME/chat/completions?api-version=…`, with the key in `api-key`."""
    dated = {"azure_api_version": "2024-10-21", "azure_deployment": "mine"}
    async with OfflineModel() as service, client(service.url, **dated) as model:
        assert text_of(await events(model, stream=stream))
        (request,) = service.requests
    assert request["path"] == "/openai/deployments/mine/chat/completions"
    assert request["query"] == {"api-version": "2024-10-21"}
    assert "api-key" in request["headers"]
    assert "authorization" not in request["headers"]


@pytest.mark.parametrize(
    ("name", "dated"),
    [
        ("openai-chat", {}),
        ("openai-responses", {}),
        ("openai-responses", {"azure_api_version": "2025-04-01-preview"}),
    ],
)
async def test_a_deployment_is_the_model_where_the_path_does_not_name_it(
    name: str, dated: dict[str, str]
) -> None:
    """The model's own name says only what kind of model it is, and what telemetry calls it."""
    named = {"model": "gpt-5", "max_tokens": 9, "azure_deployment": "mine", **dated}
    async with OfflineModel() as service, client(service.url, name, **named) as model:
        await events(model)
        (request,) = service.requests
    assert request["body"]["model"] == "mine"
    assert request["body"].keys() & {"max_completion_tokens", "max_output_tokens"}
    assert model.name == "gpt-5"


async def test_the_dated_responses_api_has_no_deployment_in_its_path() -> None:
    """The model is named in the body there; listing keeps the version in every page's query."""
    async with OfflineModel() as service:
        async with client(service.url, "openai-responses", azure_api_version="2025-04-01-preview") as model:
            *_, last = await events(model)
            await model.list_remote(last.response_id)  # type: ignore[attr-defined, union-attr]
        paths = [request["path"] for request in service.requests]
        queries = [request["query"] for request in service.requests]
    assert paths[0] == "/openai/responses"
    assert all(query["api-version"] == "2025-04-01-preview" for query in queries)
    assert queries[-1]["order"] == "asc"


def test_the_undated_api_takes_the_key_in_its_own_header() -> None:
    """`api-key`, and no bearer token beside it."""
    options = OpenAIChatOptions(model="m", base_url="https://mine.openai.azure.com", api_key=KEY)
    headers = own_authorization(options)
    assert headers["api-key"] == KEY
    assert isinstance(headers["Authorization"], openai.Omit)
