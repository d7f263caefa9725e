"""The pages on threads and the library name what there is: options with defaults, parameters, errors."""

import inspect
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

import tealagents.threads
from tealagents.agent import Agent
from tealagents.domain import errors
from tealagents.threads import LocalThread, MessageStore, ProviderOptions, RedisMessages
from tealagents.threads.components import PROVIDERS, REDUCERS
from tealagents.threads.reducers import ReducerOptions

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "threads.md").read_text()
LIBRARY = (DOCS / "library.md").read_text()
#: whose default is words, or nothing
PLAIN = {"config", "instructions", "max_tokens", "windows"}


@pytest.mark.parametrize("name", [*REDUCERS.known(), *PROVIDERS.known()])
def test_every_option_of_a_reducer_and_a_provider_is_on_the_page_with_its_default(name: str) -> None:
    """Those of all of them are described in the text."""
    options: type[BaseModel] = (REDUCERS if name in REDUCERS.known() else PROVIDERS).find(name).Options
    [row] = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)
    common = ReducerOptions.model_fields.keys() | ProviderOptions.model_fields.keys()
    assert {each for each in common if f"`{each}" not in PAGE} == set()
    for option, field in options.model_fields.items():
        if option in common:
            continue
        assert f"`{option}`" in row
        if option not in PLAIN:
            assert stated(row, option) == ("required" if field.is_required() else shown(options(), option))


def stated(row: str, option: str) -> str:
    """The default that a row of the page states."""
    [found] = re.findall(rf"`{option}` \(`?([^;,)`]+)", row)
    return str(found)


def shown(options: BaseModel, option: str) -> str:
    """The default that an option has, as the page writes it."""
    of_its_own = {"tokenizer": "the model's", "directory": "~/.mem0"}
    value = getattr(options, option)
    return str(of_its_own.get(option, str(value).lower() if isinstance(value, bool) else value))


def test_the_parameters_of_an_agent_and_of_a_message_store_are_on_the_page() -> None:
    """With which a program calls them; those of the store with their defaults."""
    parameters = set(inspect.signature(Agent.from_config).parameters) - {"path"}
    assert {each for each in parameters if f"`{each}`" not in LIBRARY and f"{each}=" not in LIBRARY} == set()
    signature = inspect.signature(RedisMessages)
    names = [
        str(each.replace(annotation=each.empty)).replace("'", '"') for each in signature.parameters.values()
    ]
    assert f"RedisMessages({', '.join([*names[:2], '*', *names[2:]])})" in LIBRARY


def test_the_page_says_what_a_message_store_has_and_which_of_it_is_async() -> None:
    """With the protocol's name, so that an author finds the rest of the contract."""
    members = {name for name in vars(MessageStore) if not name.startswith("_")}
    awaited = {name for name in members if inspect.iscoroutinefunction(getattr(MessageStore, name))}
    [plain, after] = re.findall(
        r"`MessageStore` of `tealagents\.threads`:([^.]+) the\sasync([^.]+)\.", LIBRARY
    )[0]
    assert set(re.findall(r"`(\w+)`", plain)) == members - awaited
    assert set(re.findall(r"`(\w+)`", after)) == awaited


def test_what_the_page_names_of_a_thread_is_there() -> None:
    """Attributes and methods; errors are in the module that the page imports them from."""
    named = set(re.findall(r"(?<![\w.])thread\.(\w+)", LIBRARY))
    assert {"checkpoint_id", "checkpoints", "to_json"} <= named
    assert {each for each in named if not hasattr(LocalThread(), each)} == set()
    [here, there] = re.findall(r"errors,?\s(?:such\sas\s)?((?:`\w+`(?:,\s|\sand\s)?)+),\scome from", LIBRARY)
    assert all(hasattr(tealagents.threads, each) for each in re.findall(r"`(\w+)`", here))
    assert all(hasattr(errors, each) for each in re.findall(r"`(\w+)`", there))
