"""The command line: words in, words out.

In: arguments and environment of a process. Out: text on stdout and stderr, and an exit code.
Nothing imports this package. It holds no rule of its own: what a command does lives below.
"""
