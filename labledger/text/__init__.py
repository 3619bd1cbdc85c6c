"""Text for people: parts of messages, escaping of foreign text.

In: text. Out: text that is safe to print.
Imports nothing of labledger.
"""
