"""What a request costs, against a floor measured in the same run: `make bench`, or `python -m benchmarks`.

The floor is a bare stateless handler that calls the same model service through the `openai` SDK as its README
shows. Everything the service promises beyond that (state, ownership, one writer, replay, …) is what it has to
pay for out of the difference. Machines and their other work differ, so the bounds are ratios, and floor and
service take turns (A B A B), so that what disturbs one disturbs the other.

    floor        the bare handler, at most 30 lines
    processes    the processes that are measured: their CPU clock, memory, bytes written
    load         a lean HTTP client, so that the load costs little beside what it loads
    figures      one measured value and its bound
    measures     what is measured: turns, streams, throughput, memory, start
    servers      the servers of stores, and what they report of themselves
    stores       the cost of each store beside the one in memory
    operations   what is asked of the store, counted
    costs        what everything costs on the stores with a server
    long_tasks   a turn of a task of ten thousand turns
    echo         a model within the service's process, for counting
    sizing       from costs to replicas and stores, for `docs/scale.md`
    protocols    the same turn over each protocol
    tokens       what it costs to check a token
    stateless    a turn of the earlier platform's agents
    simulation   a million tasks on a store that counts
    followers    followers of requests on another process
    workers      two workers beside one
    console      what the console costs a browser: `python -m benchmarks.console`
    report       the table, and the JSON in benchmarks/results/

Needs Linux: CPU time is read from another process's clock, memory and bytes from /proc.
"""
