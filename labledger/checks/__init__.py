"""Checks of the images that a run uses, and how missing images are pulled or built.

In: references of images, and the settings of trials that use them. Out: check results, and the ids
of images. Probes run in short-lived containers. May not import `preflight`, which combines these
checks with those of the experiment and the lab folder.
"""
