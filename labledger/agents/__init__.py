"""Profiles of agent programs: how each is installed, started, and told which model to use.

In: the name of a profile, a pinned version, a model and options. Out: a folder that containers
mount read-only, and the command and environment that start the agent there. It knows no container
engine, no experiment and no ledger.
"""
