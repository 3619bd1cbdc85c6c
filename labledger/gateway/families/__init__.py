"""The APIs of model providers: what a request asks for, what an answer says of its usage, errors.

In: parsed requests, and bytes of answers as they pass. Out: facts and `Usage`. Nothing here changes
a byte, opens a connection or imports aiohttp.
"""
