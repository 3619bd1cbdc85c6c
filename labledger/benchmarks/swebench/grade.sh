# Grades a prediction as the swebench package does, in a fresh container of the task's image.
#
# Applies /swebench/model.patch by the first of four commands that can, each from a clean tree; then
# runs the task's script. What happened goes to run_instance.log, and the output of the tests to
# test_output.txt, which the host judges. There is nothing to run for a missing or an empty patch, or
# for one that is larger than a prediction may be.
set -u
logs=/swebench/logs
patch=/tmp/patch.diff
exec >>"$logs/run_instance.log" 2>&1

if [ ! -e /swebench/model.patch ]; then
  echo "no prediction"
  exit 0
fi
cp /swebench/model.patch "$patch" || exit 1
if [ ! -s "$patch" ]; then
  echo "empty patch"
  exit 0
fi
if [ "$(wc -c <"$patch")" -gt 8388608 ]; then
  echo "the patch is larger than 8 MiB, which is the most that a prediction may have"
  exit 0
fi
cd "$WORKSPACE" || exit 1

applied=no
attempt=0
for command in "git apply --verbose" "git apply --verbose --3way" "git apply --verbose --reject" \
  "patch --batch --forward --fuzz=5 -p1 -i"; do
  # A failed attempt leaves parts of the patch behind, on which the next one would fail.
  [ "$attempt" = 0 ] || { git checkout -- . ; git clean -fd; } >/dev/null 2>&1
  attempt=$((attempt + 1))
  # Unquoted: the command's words.
  if output=$($command "$patch" 2>&1); then
    applied=yes
    break
  fi
  echo "Failed to apply patch to container: $command"
done
if [ "$applied" = no ] && git apply --check --reverse "$patch" >/dev/null 2>&1; then
  output="verified already applied"
  applied=yes
fi
if [ "$applied" = no ]; then
  printf '>>>>> Patch Apply Failed:\n%s\n' "$output"
  exit 0
fi
printf '>>>>> Applied Patch:\n%s\n' "$output"
echo "Git diff before:"
git -c core.fileMode=false diff
/bin/bash /swebench/grader/eval.sh </dev/null >"$logs/test_output.txt" 2>&1
echo "The task's script ended with status $?"
echo "Git diff after:"
git -c core.fileMode=false diff
exit 0
