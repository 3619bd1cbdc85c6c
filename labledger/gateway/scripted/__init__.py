"""A model provider that answers by a script: for tests, and to try agents without a key.

In: a script, a file in YAML or JSON. Out: an HTTP server that speaks the four APIs, streamed and
not, with the script's usage and faults. It asks no model. The gateway must not import it.

Read first: `script`, `provider`, `agent_actions`.
"""
