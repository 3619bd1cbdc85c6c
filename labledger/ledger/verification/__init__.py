"""Checks that a ledger still contains what was committed.

In: a ledger. Out: findings; damage of any kind is a finding, never an exception. Changes nothing.
`verify` is the entry point.
"""
