"""Text for people: plurals, near names, escaping of foreign text.

In: text. Out: text that is safe to print.
Imports nothing of labledger.
"""
