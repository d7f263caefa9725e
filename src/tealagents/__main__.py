"""`python -m tealagents` is the command line."""

from tealagents.cli import main

main()
