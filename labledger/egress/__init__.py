"""The egress proxy: the program that decides which hosts a trial can reach.

`proxy_program` runs in a container of its own, beside a trial with the network `allowlist`, and
decides by `allowed_hosts`, with which experiments check their lists. Neither imports anything else
of labledger.
"""
