"""The screens of `labledger view`: what each page shows, as a document.

In: the opened ledger and the parameters of a request. Out: a JSON object, which a template and a
module of JavaScript show. A screen knows no HTTP, and keeps nothing of a request; it must not
import the server.
"""
