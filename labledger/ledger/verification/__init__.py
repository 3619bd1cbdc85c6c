"""Checks that a ledger still says what was committed.

In: a ledger. Out: findings; damage of any kind is a finding, never an exception.
Changes nothing.
"""
