"""The networks of a trial's phases, and the egress proxies of those with an allow-list.

In: an attempt's specification. Out: configurations, names, and proxies on the engine. `life`
decides when they are made, changed and removed; nothing of it may be imported here.
"""
