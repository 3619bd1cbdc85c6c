"""The database itself: tables, views, triggers, migrations, connections.

In: a path. Out: connections to a ledger of the newest revision.
The lowest part of the ledger; it imports no other part.
"""
