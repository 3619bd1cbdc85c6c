"""What requests to models ask for: bounds of the answer, provider-side features, and sizes.

In: the parsed body of a request. Out: `Asked`, or `Refused`. No module here knows answers. Each API
has one module. `bodies` has the common code, and `media` has the possible costs of images and
files.
"""
