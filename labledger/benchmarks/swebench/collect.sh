# Makes the prediction: /swebench/model.patch, what the agent changed in the repository.
#
# The patch is against the commit that the image had checked out, which is the task's base commit or
# the image's own commit on top of it. Without a patch there is no prediction.
mkdir -p /swebench
rm -rf /swebench/model.patch /swebench/made.patch
if [ -e /agentlab/out/no_prediction ]; then
  exit 0
elif [ -f /agentlab/out/model.patch ]; then
  cp /agentlab/out/model.patch /swebench/made.patch
else
  cd "$WORKSPACE" || exit 0
  base=$(cat /swebench/base 2>/dev/null) || base=HEAD
  git -c safe.directory='*' add -A &&
    git -c safe.directory='*' diff --cached --binary --no-color --no-ext-diff --no-textconv \
      --src-prefix=a/ --dst-prefix=b/ "$base" >/swebench/made.patch || exit 0
fi
mv /swebench/made.patch /swebench/model.patch
