"""`openai`: the agent for clients of OpenAI's API: Responses, Conversations, models, Chat Completions.

===============  =======================================================================
`app`            puts the routes and the handlers of errors together
`responses`      what ids name; creating, reading, streaming, cancelling and deleting responses
`conversations`  tasks as conversations with items
`chat`           Chat Completions, for front ends that know nothing else
`inputs`         what clients send, as messages and decisions
`fold`           recorded events as the events and the output of one response
`documents`      what is said, as plain JSON
`errors`         domain errors in OpenAI's form
===============  =======================================================================

A request that paused is several responses here: each runs from the message, or from a decision, to the next
pause or the end.
"""
