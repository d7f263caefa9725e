"""The command line `tealagents`: one module per command. Nothing imports this package.

====================  ==========================================================================
`main`                the table of commands, and what they share
`new`, `upgrade`      the files of a new agent; the file of an earlier one, rewritten
`serve`               serves an agent; `protocol`: HTTP/1.1 as it is served; `supervisor`: of workers
`check`, `doctor`     what is wrong before anything starts (`findings`), and with a service
`chat`                a conversation in the terminal
`state`               what is stored, for operators; `migrate`
`offline`, `token`    the offline model; a local authority and its tokens
`loading`, `output`   reading a config for a command; writing to standard output
`help`                how `--help` shows arguments and options
====================  ==========================================================================
"""

from tealagents.cli.main import main

__all__ = ["main"]
