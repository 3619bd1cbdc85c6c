"""The model gateway: it holds the providers' keys, forwards requests of agents, and counts usage.

In: grants of attempts, and requests over a Unix socket for each attempt. Out: the providers' bytes,
unchanged, and a journal of calls that is durable on this host. It knows no run, no ledger and no
container, and imports `records`, `files`, `errors`, `text` and `clock` alone. `grants` and
`journal` need no library of the extra `agents`, so that a trial can read them. Nothing below this
package imports aiohttp.
"""
