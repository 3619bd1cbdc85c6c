"""What an image is built from: names of images, build contexts and their digests.

In: a folder with a Dockerfile, its `.dockerignore`, a target and arguments. Out: a digest of all of
it, and the same files as a tar for the engine, read as a stream. Builds nothing and knows neither
Docker nor experiments; formats and experiments use it for digests, `docker` for builds.
"""
