"""The command line `tealagents`: one module per command. Nothing imports this package.

====================  ==========================================================================
`main`                the table of commands, and the entry point
`new`, `upgrade`      creates the files of a new agent; converts the file of an earlier one
`serve`               serves an agent: here, with `--reload`, or with workers (`supervisor`)
`application`         what each process serves: built, from its start to its end
`listening`           the address it listens on
`check`, `doctor`     finds mistakes in a config before anything starts (`findings`); examines a service
`chat`                a conversation in the terminal
`state`, `migrate`    the commands for operators on stored state; updates a store's tables
`offline`, `token`    serves the offline model; serves a local authority, and prints its tokens
`loading`, `output`   reads a config for a command, and prints errors; checks standard output
`help`                how `--help` shows arguments and options
====================  ==========================================================================
"""

from tealagents.cli.main import main

__all__ = ["main"]
