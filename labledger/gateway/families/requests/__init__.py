"""What requests to models ask for: bounds of the answer, provider-side features, and sizes.

In: the body of a request, parsed. Out: `Asked`, or `Refused`. Nothing here knows answers. Each API
has one module; `bodies` has what they share, and `media` knows what images and files may cost.
"""
