"""Shipped test helpers: for this project, for agents, and for third-party stores and providers.

=================  =====================================================================================
`service`          a running service, on a thread or as a process that can be killed
`forking`          services and commands as processes that start in milliseconds
`spawning`         the same for the worker processes of a forked `serve --workers`
`killing`          a service process that dies at a chosen point of a turn
`servers`          private Redis, PostgreSQL and DynamoDB servers
`faults`           a proxy that delays, drops, resets and cuts connections; a full disk
`stores`           the contract suite of stores, with `store_watches`, `store_histories` and `store_steps`;
                   `store_links`: the suite for links to a server
`history`          compares the answers that clients got with the final state of a service
`counting`         a store that counts the operations on another one; a store that drops partitions
`digest_model`     a model whose answer is a digest of what it was sent
`plan_model`       a model that makes the tool calls that a message describes
`models`           a model in this process, scripted by a function
`authority`        an authority that issues tokens like Entra ID; `signing_in`: sign-in with a browser there
`clock`            time that a test moves
`waits`            waiting for a condition, with a deadline
`pytest_servers`   the servers as pytest fixtures; `pytest_stores`: services on any durable store
=================  =====================================================================================

The model service for tests is `tealagents.llm.offline`. This package may import everything. Only tests,
demos, benchmarks and the commands `authority` and `token` import it. The modules for pytest need the extra
`testing`.
"""

import sys

if pytest := sys.modules.get("pytest"):
    # pytest shows what an assertion compared only in tests and in modules that are named before their import
    for _suite in ("stores", "store_histories", "store_links", "store_steps", "store_watches"):
        pytest.register_assert_rewrite(f"{__name__}.{_suite}")
