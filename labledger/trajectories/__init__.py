"""The steps of an agent in the Agent Trajectory Interchange Format (ATIF 1.8).

In: recorded calls, an agent's log, or an agent's trajectory, all of them hostile and bounded. Out:
one document, written in constant memory, and an index of its steps. Unreadable content is counted.
Must not import containers, ledger or experiments. Read `atif`, `drafts` and `trajectory_writer`
first.

Read first: `atif`, `agent_document`, `trajectory_writer`.
"""
