"""The gateway's side towards providers: keys, pace, retries, probes, and the meaning of refusals.

In: a request that was admitted. Out: an answer, or the reason why there is none. May not import
`attempts`.

Read first: `upstream`, `pacing`, `refusals`.
"""
