"""What an agent did, as steps of the Agent Trajectory Interchange Format (ATIF 1.8).

In: what the gateway recorded, an agent's own log, or a trajectory that an agent wrote. Out: one
document, written step by step in flat memory, and a short index of its steps. It knows no
container, no ledger and no experiment, and what it reads may be hostile: it is bounded, and what
cannot be read is counted, never an error of the trial.
"""
