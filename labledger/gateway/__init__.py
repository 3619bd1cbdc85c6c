"""Models for agents: the scripted provider, which answers by a script and asks no model.

In: a script, and requests in the forms of the providers' APIs. Out: answers with the script's
usage and faults. It knows no run, no ledger and no container, and nothing below this package
imports aiohttp.
"""
