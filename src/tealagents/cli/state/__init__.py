"""`tealagents state …`: the commands for operators on stored state.

===========  ===================================================================================
`stats`      counts what there is
`transfer`   exports all state, and imports it into another store
`prune`      erases what is expired or old
`users`      erases everything of one user; shows whose an id is
`audit`      verifies audits
`opening`    opens the state of an agent for a command; `reporting`: what several of them show
===========  ===================================================================================
"""

import typer

from tealagents.cli.help import CommandWithHelp, GroupWithHelp
from tealagents.cli.state.audit import verify_command
from tealagents.cli.state.prune import prune_command
from tealagents.cli.state.stats import stats_command
from tealagents.cli.state.transfer import export_command, import_command
from tealagents.cli.state.users import delete_user_command, owner_command

state = typer.Typer(
    cls=GroupWithHelp, no_args_is_help=True, help="Inspect, move, prune and verify stored state."
)
for name, command in (
    ("stats", stats_command),
    ("export", export_command),
    ("import", import_command),
    ("prune", prune_command),
    ("delete-user", delete_user_command),
    ("owner", owner_command),
    ("verify-audit", verify_command),
):
    state.command(name, cls=CommandWithHelp)(command)
