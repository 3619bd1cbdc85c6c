"""The command line: parses arguments, calls the public library, and prints the results.

In: arguments and environment of a process. Out: text on stdout and stderr, and an exit code.
Imports only the names of `labledger` and `labledger.text`. Nothing imports this package.
"""
