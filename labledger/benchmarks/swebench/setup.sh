# Notes the commit that the image has checked out, before the agent can change it.
mkdir -p /swebench
git -c safe.directory='*' -C "$WORKSPACE" rev-parse HEAD >/swebench/base
