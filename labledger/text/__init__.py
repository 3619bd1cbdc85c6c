"""Text for people: words, figures, escaping, and JSON in pieces.

In: numbers, names, and text from other programs. Out: text that every output writes the same way,
and that cannot deceive a reader. An unknown number is a dash, never 0. May import only `clock`.

Read first: `figures`, `escaping`, `words`.
"""
