"""The state model: an append-only log per task, over any store.

Every commit lies within one partition. One that changes a task is a compare-and-set on its head.
Nothing that has been written to a log is ever rewritten.

=================  =============================================================================
`keys`             the names of partitions and records
`codec`            records as bytes, each with a checksum bound to its key
`audit_chain`      the audit's hash chain: canonical JSON, SHA-256 or HMAC
`commits`          sends commits; finds the outcome of one whose reply was lost
`records`          reads and commits records; `out_of_line`: where large ones are kept
`batches`          calls of the store, a few at the same time
`owner_directory`  finds the owner of an id
`workers`          one lease per process; dead workers; signals between processes
`transitions`      every change of a task, decided purely
`head_commits`     commits transitions: the one place where the head of a living task is changed
`tasks`            finds tasks, ends requests that no process carries on
`endings`          how requests end without an answer, and why
`begun`            the requests that this process has begun and is not done with
`submission`       turns a message into a request that runs or waits in the queue
`new_message`      a client's message; `new_task`: a task before its first message
`queue`            messages that wait: how they are stored, and when they take their task
`task_writer`      the right to append to a task while a request runs on it
`decisions`        records the decision on a pause, and takes the task to carry it out
`changes`          metadata, expiry and rollback
`history`          messages, trace, checkpoints and audit, as views of the log
`streams`          a request's stream events, kept for replay
`memories`         what context providers remember of a user
`secret_store`     secrets of users, only in an encrypted store
`catalog`          lists of sessions, tasks and approvals
`latest`           a user's requests, the last changed first
`tenants`          the tasks of a whole tenant, for its auditors
`copying`          writes a copied task under a tombstone; used by the next two
`forking`          a new task with the history of another one
`importing`        a task from its document; `exporting`: a task as its document
`task_document`    the document, and the checks of one that is imported
`document_paths`   the paths in a document, each without its parent's
`erasing`          deletes tasks and sessions, in steps that survive a crash, with the next two
`session_deletion` the stages of deleting a session with its tasks
`removal`          a task's tombstone, and the removal of its records page by page
`inventory`        the state of all users: for the operator's commands, as are the next three
`dump`             exports all state as lines of JSON; `dump_import`: into another store
`pruning`          erases old tasks, or everything of one user
`audit`            verifies logs entry by entry
=================  =============================================================================

Imports `domain` only. `engine`, `threads` and `api` build on it; adapters never see it.
"""
