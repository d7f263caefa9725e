"""`tealagents offline-model`."""

from pathlib import Path
from typing import Annotated

import typer

from tealagents.cli.help import Host
from tealagents.cli.loading import fail, unusable


def offline_model_command(
    host: Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port to listen on; 0 for any free one.")
    ] = 8001,
    script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="A YAML file that scripts the answers."
        ),
    ] = None,
) -> None:
    """Serve only the built-in model: an OpenAI-compatible endpoint that needs no key.

    Point any OpenAI client at it, or `tealagents serve` with `TA_BASE_URL`.
    """
    from tealagents.llm.offline import ScriptError, serve

    try:
        serve(host, port, script)
    except ScriptError as error:
        raise fail(str(error)) from None
    except OSError as error:
        raise fail(unusable(host, port, error)) from None
