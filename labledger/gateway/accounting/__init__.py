"""The calls of an attempt in numbers: the journal, tokens, costs, caps, waiting time and memory.

In: calls as they begin and end. Out: lines of the journal, and sums that caps are compared with.
May not import `attempts` or `providers`.

Read first: `calls`, `call_journal`, `caps`.
"""
