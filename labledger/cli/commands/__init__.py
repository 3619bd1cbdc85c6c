"""One function for each command, grouped by what they are about.

In: parsed options. Out: calls of the library, and its results handed to `cli.output`.
May not be imported by `cli.options` or `cli.output`.
"""
