"""Upkeep of a lab folder: verify, import, archive, clean, delete runs and collect garbage.

In: a lab folder, and runs of its ledger. Out: findings, imported runs, archives, and what was
removed. Nothing is removed that a live coordinator may need, or whose result is not durable. May
not import `runner`, `checks` or `api`.
"""
