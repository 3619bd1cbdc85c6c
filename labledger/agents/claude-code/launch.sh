#!/bin/sh
# Starts Claude Code with the instruction on its standard input.
. "${0%/*}/prelude.sh"
export ANTHROPIC_BASE_URL="$AGENTLAB_MODEL_URL" ANTHROPIC_AUTH_TOKEN="$AGENTLAB_MODEL_TOKEN"
unset ANTHROPIC_API_KEY
export CLAUDE_CONFIG_DIR="$settings/claude"
# Root may skip the permissions in a sandbox only.
export IS_SANDBOX=1
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1
# Otherwise titles and summaries go to other models than the one that was chosen.
export ANTHROPIC_DEFAULT_HAIKU_MODEL="${ANTHROPIC_DEFAULT_HAIKU_MODEL:-$AGENTLAB_MODEL}"
export CLAUDE_CODE_SUBAGENT_MODEL="$AGENTLAB_MODEL"
# Settings of the project could name another provider, refuse tools or run hooks. Without them Claude
# Code reads the project's CLAUDE.md only from folders that are added.
export CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD=1
set -- --setting-sources user "--add-dir=$PWD" "$@"
for program in "$agent"/app/node_modules/@anthropic-ai/claude-code-linux-*/claude; do
    exec "$program" --print --verbose --output-format stream-json --dangerously-skip-permissions \
        --model "$AGENTLAB_MODEL" "$@" <"$AGENTLAB_INSTRUCTION_PATH"
done
