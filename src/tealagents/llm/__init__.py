"""Clients of model services, which implement `tealagents.domain.ports.Model`.

===================  =======================================================================================
`openai_chat`        the client for chat completions: OpenAI, Azure OpenAI, and compatible services
`chat_reading`       reads their answers
`openai_responses`   the client for the Responses API, and for conversations that the service keeps
`responses_reading`  reads its answers
`options`            the options of the clients; third parties subclass `ModelOptions`
`credentials`        Azure OpenAI without a key: tokens for the identity that this service runs as
`service`            one call, from the encoded request to events: deadlines, retries, failures
`wire`               the `openai` SDK's client on a plain HTTP client; imported when a service is opened
`addressing`         the URL of a service, and how calls are authorized
`encoding`           writes JSON for a service, and reads its JSON
`adjustments`        adjusts calls to what a service refuses
`native`             data that a service needs back with its tool calls, such as reasoning
`frames`             parses server-sent events
`deadlines`          the deadlines of one call
`retries`            whether and when a call is retried
`failures`           turns what went wrong into an error, with all secrets masked
`offline`            a model service on loopback, for tests, demos and work without a key
===================  =======================================================================================

`bootstrap` opens a client by its name. Imports `domain`, `outbound`, `options`, `mistakes` and `registry`
only. A client of your own is a class that implements the port and has an `Options` (a `ModelOptions`). It is
named `module:Class`, or by an entry point of the group `tealagents.llm`.
"""

from pathlib import Path
from typing import Any

from tealagents.domain.ports import Model
from tealagents.llm.options import ModelOptions
from tealagents.mistakes import Misconfigured
from tealagents.registry import Registry

__all__ = ["MODELS", "ModelConfigError", "ModelOptions", "open_model"]


class ModelConfigError(Misconfigured):
    """A model client cannot be found, or one of its options is wrong. The text says what to do."""


MODELS = Registry(
    word="model client",
    error=ModelConfigError,
    group="tealagents.llm",
    built_in={
        "openai-chat": "tealagents.llm.openai_chat:OpenAIChat",
        "openai-responses": "tealagents.llm.openai_responses:OpenAIResponses",
    },
    methods=("encode_system", "encode", "encode_tools", "stream", "__aenter__", "__aexit__"),
    attributes=("name", "provider"),
)


def open_model(name: str, folder: Path | None = None, /, **options: Any) -> Model:
    """Makes the model client called `name`; enter its async context to open it.

    `name` is one of `MODELS.known()`, or `module:Class`, which may lie in `folder`, that of the config
    file. `options` are those of its `Options`. Options that are None are omitted, so that a client need not
    know options that are not configured.

    Raises:
        ModelConfigError: the client cannot be found, or an option is wrong.
    """
    model = MODELS.find(name, folder)
    given = {option: value for option, value in options.items() if value is not None}
    opened: Model = MODELS.make(name, model, given)
    return opened
