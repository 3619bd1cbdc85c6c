"""The command line: parses arguments, calls the public library, and prints the results.

In: arguments and environment of a process. Out: text on stdout and stderr, and an exit code.
Imports only the public library (`labledger`, its `errors` and `results`) and `labledger.text`.
Nothing imports this package.

Read first: `app`, `option_groups`, `run_display`.
"""
