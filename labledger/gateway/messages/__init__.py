"""Requests and answers as values: admission, headers, the canonical form, recordings.

In: heads and bodies of requests. Out: what they ask for, or a refusal. Opens no connection. May not
import `attempts`, `providers` or `accounting`.

Read first: `admission`, `answers`, `recordings`.
"""
