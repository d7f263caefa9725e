"""The store of `docs/how-to-write-a-store.md`, run as it is printed there."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tealagents.domain.errors import PersistenceUnavailable
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


def test_a_failure_shows_what_was_compared(tmp_path: Path) -> None:
    """The author of a store that breaks a promise reads in pytest's output what the suite expected."""
    broken = STORE.replace("reverse=reverse)\n", "reverse=False)\n")
    assert broken != STORE
    (tmp_path / "test_broken.py").write_text(broken + TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "scans_are_ordered"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"AssertionError: assert \[.*\] == \[", run.stdout), run.stdout


async def test_the_url_of_the_page(tmp_path: Path) -> None:
    """The class can be named in the place of a scheme, with its path and options behind it."""
    async with open_store(f"notebook_of_the_page:NotebookStore://{tmp_path}/state.json?indent=2") as store:
        await store.commit("p", Commit(operation="0" * 24, put={"key": Put(b"value")}))
    assert (tmp_path / "state.json").read_text().startswith('{\n  "p"')


def test_options_of_the_page() -> None:
    """An unknown option is refused, and the known ones are listed."""
    with pytest.raises(StoreConfigError, match=r"colour: unknown key; .*\bindent\b"):
        open_store("notebook_of_the_page:NotebookStore:///state.json?colour=red")


async def test_a_second_opening_is_refused(tmp_path: Path) -> None:
    """While one process has the page's store open, no other can undo what it commits; afterwards one can."""
    url = f"notebook_of_the_page:NotebookStore://{tmp_path}/state.json"
    async with open_store(url):
        with pytest.raises(PersistenceUnavailable, match=r"/state\.json is unavailable: another process"):
            await open_store(url).__aenter__()
    async with open_store(url) as store:
        await store.ping()


async def test_a_lost_folder_makes_the_store_unavailable(tmp_path: Path) -> None:
    """Without its folder the page's store raises what the port names, and `ping` answers once it is back."""
    folder, aside = tmp_path / "state", tmp_path / "aside"
    url = f"notebook_of_the_page:NotebookStore://{folder}/state.json"
    put = Commit(operation="0" * 24, put={"key": Put(b"value")})
    with pytest.raises(PersistenceUnavailable, match="No such file or directory"):
        await open_store(url).__aenter__()
    folder.mkdir()
    async with open_store(url) as store:
        folder.rename(aside)
        with pytest.raises(PersistenceUnavailable, match="No such file or directory"):
            await store.ping()
        with pytest.raises(PersistenceUnavailable, match="No such file or directory"):
            await store.commit("p", put)
        aside.rename(folder)
        await store.ping()
        assert await store.read("p", ["key"]) == [None]
