"""`ag-ui`: the agent for pages and front ends that speak AG-UI 1.0, such as CopilotKit's.

===========  ==========================================================================
`app`        the one route, and the errors
`inputs`     what a client sends: what is new in it, and what answers a pause
`runs`       carries an input out: continues, decides, replays, or shows what there is
`fold`       recorded events as the events of one run, and messages as documents
===========  ==========================================================================

A request that paused is several runs here, one for each of its stretches.
"""
