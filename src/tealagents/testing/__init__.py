"""What ships for tests: of this project, of agents, and of stores and providers that others write.

=================  =====================================================================================
`service`          a running service, on a thread or as a process that can be killed
`forking`          the same, and the other commands, started in milliseconds
`spawning`         the processes that `--workers` starts there, in milliseconds as well
`killing`          a process that dies at a chosen point of a turn
`servers`          private Redis, PostgreSQL and DynamoDB servers
`faults`           a proxy that delays, drops, resets and cuts connections; a full disk
`stores`           the suite that every store passes, with `store_watches`, `store_histories`, `store_steps`;
                   `store_links`: the one for links to a server
`history`          the answers that clients got, compared with what a service remembers
`counting`         a store that counts what is asked of another, and one that forgets
`digest_model`     a model whose answer is a digest of what it was sent
`plan_model`       a model that calls the tools that the message says
`models`           a model in this process
`authority`        an authority that issues tokens as Entra ID does; `signing_in`: there, as a browser does
`clock`            time that a test moves
`waits`            waiting for a condition, with a deadline
`pytest_servers`   servers as fixtures; `pytest_stores`: services on any durable store
=================  =====================================================================================

The model service for tests is `tealagents.llm.offline`. May import everything; nothing imports it but
tests, demos, benchmarks and the command line's `authority` and `token`. What is for pytest needs the extra
`testing`.
"""
