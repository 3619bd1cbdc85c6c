"""Text for people: figures, parts of messages, escaping of foreign text.

In: numbers and text. Out: text; what foreign text becomes is safe to print.
Imports only `clock` of labledger.
"""
