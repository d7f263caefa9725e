"""The store of `docs/how-to-write-a-store.md`, run as it is printed there."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tealagents.domain.ports import Commit, Put
from tealagents.stores import StoreConfigError, open_store

PAGE = Path(__file__).parents[2] / "docs" / "how-to-write-a-store.md"
STORE, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def printed(*blocks: str) -> ModuleType:
    """The page's code as the module `notebook_of_the_page`."""
    module = ModuleType("notebook_of_the_page")
    sys.modules[module.__name__] = module
    exec(compile("".join(blocks), PAGE, "exec"), module.__dict__)
    return module


#: the page's own test class, which runs the whole contract suite
TestNotebookStore = printed(STORE, TEST).TestNotebookStore
#: fewer than the default, because it writes everything anew each time
TestNotebookStore.examples = 50


async def test_the_url_of_the_page(tmp_path: Path) -> None:
    """The class can be named in the place of a scheme, with its path and options behind it."""
    async with open_store(f"notebook_of_the_page:NotebookStore://{tmp_path}/state.json?indent=2") as store:
        await store.commit("p", Commit(operation="0" * 24, put={"key": Put(b"value")}))
    assert (tmp_path / "state.json").read_text().startswith('{\n  "p"')


def test_options_of_the_page() -> None:
    """An unknown option is refused, and the known ones are listed."""
    with pytest.raises(StoreConfigError, match=r"colour: unknown key; .*\bindent\b"):
        open_store("notebook_of_the_page:NotebookStore:///state.json?colour=red")
