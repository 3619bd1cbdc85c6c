"""Models for agents: the gateway that forwards their calls, and a scripted provider.

In: requests in the forms of the providers' APIs, and the grants of attempts. Out: the providers'
answers, and a journal of calls with their usage. Must not import the ledger, containers or the
runner.

Read first: `process`, `client`, `status`.
"""
