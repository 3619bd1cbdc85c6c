"""Models for agents: the gateway that forwards their calls, and a scripted provider.

In: requests in the forms of the providers' APIs, and the grants of attempts. Out: the providers'
answers, and a journal of calls with what they used. It knows no ledger and no container, and
nothing below this package imports aiohttp.
"""
