"""What a container left, read as untrusted input: evidence, metrics, grading, isolation facts.

In: a trial folder and how its container ended. Out: records that fit their schemas.
Starts no container.
"""
