"""The records and rules of sessions, tasks and requests, and the ports to the outside world. No I/O.

============  ==========================================================================
`ids`         canonical UUIDs, and the owner's tag that the ids made here carry
`models`      the records: Head (a task), RequestRecord, Message, Step, Session, Approval, …
`paths`       a task's path through its log, and the tool calls that a head remembers
`events`      the events of a request, and what a model yields; each protocol folds them
`errors`      every error that can reach a user, as values
`json_limits` limits of JSON from outside: its depth, and its number of values
`texts`       makes texts and JSON storable in every store, and cuts long ones
`images`      checks the images of messages
`tool_specs`  checks tool specs that third-party code supplies, and strips them for storing
`ports`       the Protocols that adapters implement: Store, Model, Tool, Authenticator, Clock, …
`clock`       the machine's own clock
============  ==========================================================================

Everything may import this package; it imports nothing of the project.
"""
