"""What is true of a Session, a Task and a Request, and what we need from the world. No I/O.

============  ==========================================================================
`ids`         canonical UUIDs, and the owner's tag that the ids made here carry
`models`      the records: Head (a task), RequestRecord, Message, Step, Session, Approval, …
`paths`       a task's path through its log, and what tools did on it
`events`      what happens to a request, and what a model yields; each protocol folds them
`errors`      every error that can reach a user, as values
`json_limits` what JSON from outside may hold, and how deep it may be nested
`texts`       texts and JSON that every store can keep, and as much of them as is passed on
`images`      what an image of a message must be
`tool_specs`  whether a tool that code of others describes can be sent to a model; what is stored
`ports`       the Protocols that adapters implement: Store, Model, Tool, Authenticator, Clock, …
============  ==========================================================================

Everything may import this package; it imports nothing of the project.
"""
