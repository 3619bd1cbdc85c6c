"""The attempts that a gateway serves, and the way of a request from an agent to its answer.

In: grants of attempts, and requests at their sockets. Out: answers, and journaled calls. May not
import `process` or `client`.

Read first: `attempt_registry`, `open_attempt`, `answer_relay`.
"""
