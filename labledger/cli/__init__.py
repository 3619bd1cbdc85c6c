"""The command line: parses arguments, calls `labledger.api`, and prints the results.

In: arguments and environment of a process. Out: text on stdout and stderr, and an exit code.
Imports nothing of labledger but `api` and `text`, and nothing imports this package.
"""
