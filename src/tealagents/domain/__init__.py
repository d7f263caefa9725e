"""What is true of a Session, a Task and a Request, and what we need from the world. No I/O.

============  ==========================================================================
`ids`         canonical UUIDs, and the owner's tag that the ids made here carry
`models`      the records: Head (a task), RequestRecord, Message, Step, Session, Approval, …
`lifecycle`   pure transitions of a task's head and of a request
`events`      what happens while a request runs; JSON folds them, SSE encodes them
`errors`      every error that can reach a user, as values
`ports`       the Protocols that adapters fill: Store, Model, Tool, Authenticator, Clock, …
============  ==========================================================================

Everything may import this package; it imports nothing of the project.
"""
