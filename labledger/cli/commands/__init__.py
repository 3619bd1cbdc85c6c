"""One function for each command, grouped by subject.

In: parsed options. Out: calls of the library, and its results passed to `cli.output`.
May not be imported by `cli.options` or `cli.output`.
"""
