"""The page on authentication says what is so."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tealagents.auth import AuthConfigError, open_auth
from tealagents.auth.options import EntraOptions
from tealagents.testing.clock import FakeClock

PAGE = (Path(__file__).parents[2] / "docs" / "auth.md").read_text()


def test_every_setting_is_explained() -> None:
    """The table of settings has a row for each setting of Entra."""
    rows = set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE))
    assert rows == {name.upper() for name in EntraOptions.model_fields}


def test_the_authoritys_lines_are_those_it_prints() -> None:
    """The settings shown are the names that the local authority prints."""
    from tealagents.testing.authority import LocalAuthority

    shown = re.findall(r"^export (\w+)=", PAGE, re.MULTILINE)
    assert shown == list(LocalAuthority().environment())


async def test_the_provider_of_ones_own_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a provider is one, and its options are checked."""
    (code,) = re.findall(r"```python\n(from pydantic.*?)```", PAGE, re.DOTALL)
    badges = ModuleType("badges")
    exec(code, badges.__dict__)
    monkeypatch.setitem(sys.modules, "badges", badges)
    async with open_auth("badges:Badges", {"door": "front"}, FakeClock()) as provider:
        assert (await provider.authenticate("front-7")).user.oid == "front-7"
    with pytest.raises(AuthConfigError, match="door"):
        open_auth("badges:Badges", {}, FakeClock())
