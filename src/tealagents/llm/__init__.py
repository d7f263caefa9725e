"""Clients of model services: what `tealagents.domain.ports.Model` asks for.

===================  =======================================================================================
`openai_chat`        chat completions: OpenAI, Azure OpenAI, and whatever speaks the same
`chat_reading`       what they send
`openai_responses`   the Responses API, and conversations that the service keeps
`responses_reading`  what that API sends
`options`            the options of the clients; third parties subclass `ModelOptions`
`credentials`        Azure OpenAI without a key: tokens from the identity that this service runs as
`service`            one call, from the encoded request to events: deadlines, retries, failures
`wire`               the `openai` SDK's client on a plain HTTP client; imported when a service is opened
`addressing`         where a service is, and how calls are signed
`encoding`           JSON written once, and read
`adjustments`        how calls are adjusted to what a service refuses
`native`             what a service wants back with tool calls, such as reasoning
`frames`             server-sent events cut out of bytes
`deadlines`          the deadlines of one call
`retries`            when a call is tried again
`failures`           what went wrong, as one of our errors, with every secret masked
`offline`            a model service of our own, on loopback, for tests, demos and work without a key
===================  =======================================================================================

`bootstrap` opens a client by its name. Imports `domain`, `outbound`, `options`, `mistakes` and `registry`
only. A client of your own is a class with an `Options` (a `ModelOptions`) that keeps the port's promises:
named `module:Class`, or by an entry point of the group `tealagents.llm`.
"""

from typing import Any

from tealagents.domain.ports import Model
from tealagents.llm.options import ModelOptions
from tealagents.registry import Registry

__all__ = ["MODELS", "ModelConfigError", "ModelOptions", "open_model"]


class ModelConfigError(ValueError):
    """A model client that cannot be found, or an option that is wrong. The text says what to do."""


MODELS = Registry(
    word="model client",
    error=ModelConfigError,
    group="tealagents.llm",
    built_in={
        "openai-chat": "tealagents.llm.openai_chat:OpenAIChat",
        "openai-responses": "tealagents.llm.openai_responses:OpenAIResponses",
    },
    methods=("encode_system", "encode", "encode_tools", "stream", "__aenter__", "__aexit__"),
)


def open_model(name: str, **options: Any) -> Model:
    """The model client called `name`, to be opened by entering its async context.

    `name` is one of `MODELS.known()`, or `module:Class`. The options are those of its `Options`; those that
    are None are left out, so that a client need not know what is not configured. ModelConfigError.
    """
    model = MODELS.find(name)
    given = {option: value for option, value in options.items() if value is not None}
    opened: Model = MODELS.make(name, model, given)
    return opened
