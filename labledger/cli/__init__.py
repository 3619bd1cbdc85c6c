"""The command line: parses arguments, calls the public library, and prints the results.

In: arguments and environment of a process. Out: text on stdout and stderr, and an exit code.
Imports only `api`, `text` and the version from labledger, and nothing imports this package.
"""
