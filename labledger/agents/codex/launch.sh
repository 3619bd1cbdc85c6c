#!/bin/sh
# Starts Codex with the instruction on its standard input.
#
# Its built-in provider ignores a base URL and opens WebSockets, so it gets a provider of its own.
. "${0%/*}/prelude.sh"
# Not below /tmp, where Codex makes no helpers of its own.
export CODEX_HOME="$AGENTLAB_AGENT_LOGS/codex"
mkdir -p "$CODEX_HOME"
provider="name=\"labledger\", base_url=\"$AGENTLAB_MODEL_URL/v1\", env_key=\"AGENTLAB_MODEL_TOKEN\""
provider="$provider, wire_api=\"responses\", supports_websockets=false"
for program in "$agent"/app/node_modules/@openai/codex/vendor/*/bin/codex; do
    exec "$program" exec --json --strict-config --skip-git-repo-check \
        --dangerously-bypass-approvals-and-sandbox -m "$AGENTLAB_MODEL" \
        -c "model_providers.labledger={$provider}" -c model_provider=labledger \
        -c check_for_update_on_startup=false -c analytics.enabled=false -c feedback.enabled=false \
        "$@" - <"$AGENTLAB_INSTRUCTION_PATH"
done
