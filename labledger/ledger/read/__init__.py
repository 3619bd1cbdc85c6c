"""Reading queries, each inside the caller's snapshot.

In: a connection. Out: typed rows, counts, records as a stream.
Writes nothing.
"""
