# The agents that come with SWE-bench: gold, empty, and those of predictions.
#
# A task's files for the variant are below /swebench/agent: model.patch, or no_prediction. An agent
# of your own changes the repository in $WORKSPACE and leaves the rest to the collect command; one
# that makes its patch itself writes it to /agentlab/out/model.patch.
set -eu
outcome=failure
if [ -f /swebench/agent/model.patch ]; then
  cp /swebench/agent/model.patch /agentlab/out/model.patch
  outcome=success
elif [ -f /swebench/agent/no_prediction ]; then
  : >/agentlab/out/no_prediction
  outcome=missing
fi
printf '{"schema_version":"agent_result_v1","outcome":"%s"}' "$outcome" >"$AGENTLAB_RESULT_PATH"
