"""Profiles of agent programs: how each is installed and started, and how it gets its model.

In: the name of a profile, a pinned version, a model and options. Out: a folder that containers
mount read-only, and the command and environment of the agent. Must not import the engine,
experiments or the ledger.

Read first: `profiles`, `installation`, `launch`.
"""
