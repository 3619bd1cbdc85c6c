"""The facts of requests to models: bounds of the answer, features of the provider, and sizes.

In: the parsed body of a request. Out: `Asked`, or `Refused`. No module here knows answers. Each API
has one module. `bodies` has the common code, and `media` bounds the tokens of images and files.

Read first: `bodies`, `anthropic`, `media`.
"""
