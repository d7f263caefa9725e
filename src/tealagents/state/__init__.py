"""The state model: an append-only log per task, over any store.

Every commit lies within one partition. One that changes a task is a compare-and-set on its head.
Nothing that has been written to a log is ever rewritten.

=================  =============================================================================
`keys`             the names of partitions and records
`codec`            records as bytes, each with a checksum bound to its key
`audit_chain`      the audit's hash chain: canonical JSON, SHA-256 or HMAC
`records`          reads and commits records; finds the outcome of a commit whose reply was lost
`owner_directory`  whose an id is
`workers`          one lease per process; who is dead; signals between processes
`transitions`      everything that happens to a task, decided purely
`tasks`            finds tasks, commits transitions, ends what no process carries on
`submission`       how a message becomes a request, or takes a place in the queue
`new_message`      what a client sends; `new_task`: a task before its first message
`queue`            a message that waits: how it is kept, and when it takes its task
`task_writer`      the right to append to a task while a request runs on it
`decisions`        what was decided of a pause, and taking the task to carry it out
`changes`          metadata, expiry and rollback
`history`          messages, trace, checkpoints and audit, as views of the log
`streams`          a request's stream events, kept for replay
`memories`         what context providers remember of a user
`secret_store`     secrets of users, only where the store is encrypted
`catalog`          lists of sessions, tasks and approvals
`latest`           a user's requests, the last changed first
`tenants`          the tasks of a whole tenant, for its auditors
`copying`          a task in the making, written under a tombstone; used by the next two
`forking`          a new task with the history of another one
`importing`        a task from its document; `exporting`: a task as its document
`task_document`    the document, and what is checked of one that comes in
`document_paths`   the paths in it, each without its parent's
`erasing`          deletion that survives a crash
`session_deletion` the stages in which a session goes, with all its tasks
`removal`          tombstones, and what a task under one held, page by page
`inventory`        what there is, of all users: for the operator's commands, as are the next three
`dump`             all state as lines of JSON, and back into another store
`pruning`          erasing what is old, and all of one user
`audit`            verifying logs entry by entry
=================  =============================================================================

Imports `domain` only. `engine`, `threads` and `api` build on it; adapters never see it.
"""
