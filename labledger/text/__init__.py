"""Text for people: figures, sizes, parts of messages, escaping of text from other programs.

In: numbers and text. Out: text that is safe to print. May import only `clock` and `errors`.
"""
