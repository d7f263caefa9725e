"""Clients of model services: what `tealagents.domain.ports.Model` asks for.

==================  =======================================================================================
`openai_chat`       chat completions: OpenAI, Azure OpenAI, and whatever speaks the same
`openai_responses`  the Responses API, and conversations that the service keeps
`options`           what a client can be told; third parties subclass `ModelOptions`
`credentials`       Azure OpenAI without a key: tokens from the identity that this service runs as
`service`           one call, from the encoded request to events: deadlines, retries, failures
`wire`              the `openai` SDK's client on a plain HTTP client; imported when a service is opened
`encoding`          JSON written once, and read
`frames`            server-sent events cut out of bytes
`patience`          the deadlines of one call
`retries`           when a call is tried again
`failures`          what went wrong, as one of our errors, with every secret masked
`offline`           a model service of our own, on loopback, for tests, demos and work without a key
==================  =======================================================================================

`bootstrap` opens a client by its name; nothing else calls this package. It imports the domain only. A client
of one's own is a class with an `Options` (a `ModelOptions`) that keeps the port's promises: named
`module:Class`, or by an entry point of the group `tealagents.llm`.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from tealagents.domain.ports import Model
from tealagents.llm.options import ModelOptions

__all__ = ["MODELS", "ModelConfigError", "ModelOptions", "known_models", "open_model"]

#: the names of the clients that come with the project, and what fills them
MODELS = {
    "openai-chat": "tealagents.llm.openai_chat:OpenAIChat",
    "openai-responses": "tealagents.llm.openai_responses:OpenAIResponses",
}

_GROUP = "tealagents.llm"


class ModelConfigError(ValueError):
    """A model client that cannot be found, or an option that is wrong. The text says what to do."""


def open_model(name: str, **options: Any) -> Model:
    """The model client called `name`, to be opened by entering its async context.

    `name` is one of `known_models()`, or `module:Class`. The options are those of its `Options`; those that
    are None are left out, so that a client need not know what is not configured. ModelConfigError.
    """
    model = _model_class(name)
    given = {option: value for option, value in options.items() if value is not None}
    try:
        opened: Model = model(model.Options(**given))
    except ValidationError as wrong:
        raise ModelConfigError(_told(name, wrong)) from None
    return opened


def known_models() -> list[str]:
    return sorted({*MODELS, *(point.name for point in entry_points(group=_GROUP))})


def _model_class(name: str) -> Any:
    module, _, attribute = (MODELS.get(name) or _third_party(name)).partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as missing:
        raise ModelConfigError(
            f"The model client {name!r} cannot be imported: there is no module {missing.name!r}."
        ) from missing
    except AttributeError:
        raise ModelConfigError(
            f"The model client {name!r} does not exist: {module} has no {attribute!r}."
        ) from None


def _third_party(name: str) -> str:
    for point in entry_points(group=_GROUP, name=name):
        return point.value
    if ":" in name:
        return name
    raise ModelConfigError(
        f"Unknown model client {name!r}. Known: {', '.join(known_models())}; or name a class as module:Class."
    )


def _told(name: str, wrong: ValidationError) -> str:
    """What is wrong with each option, without the values: a key may be among them."""
    problems = (
        ": ".join(filter(None, (".".join(map(str, error["loc"])), error["msg"]))) for error in wrong.errors()
    )
    return f"The model client {name!r} cannot be opened: {'; '.join(problems)}."
