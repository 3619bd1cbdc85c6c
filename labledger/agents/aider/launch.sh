#!/bin/sh
# Starts aider with one message, from a file. It leaves its changes uncommitted.
. "${0%/*}/prelude.sh"
export LITELLM_LOCAL_MODEL_COST_MAP=True
# It would fetch the prices of models into its cache, unless they are there; and it runs no commands
# that need the user's HOME, but git.
[ -n "${GIT_CONFIG_GLOBAL:-}" ] || ! [ -f "$HOME/.gitconfig" ] || export GIT_CONFIG_GLOBAL="$HOME/.gitconfig"
HOME=$settings/aider
mkdir -p "$HOME/.aider/caches"
cat "$agent"/app/lib/python3*/site-packages/litellm/model_prices_and_context_window_backup.json \
    >"$HOME/.aider/caches/model_prices_and_context_window.json"
case $AGENTLAB_MODEL_API in
    anthropic-messages)
        provider=anthropic
        export ANTHROPIC_API_KEY="$AGENTLAB_MODEL_TOKEN" ANTHROPIC_API_BASE="$AGENTLAB_MODEL_URL"
        ;;
    openai-chat)
        provider=openai
        export OPENAI_API_KEY="$AGENTLAB_MODEL_TOKEN" OPENAI_API_BASE="$AGENTLAB_MODEL_URL/v1"
        ;;
    gemini)
        provider=gemini
        export GEMINI_API_KEY="$AGENTLAB_MODEL_TOKEN" GEMINI_API_BASE="$AGENTLAB_MODEL_URL/v1beta"
        ;;
esac
command -v git >/dev/null 2>&1 || set -- --no-git "$@"
model=$provider/$AGENTLAB_MODEL
exec "$agent/app/bin/python" -I -m aider --model "$model" --weak-model "$model" \
    --editor-model "$model" --yes-always --no-check-update --no-show-release-notes \
    --no-show-model-warnings --no-analytics --no-auto-commits --no-dirty-commits --no-gitignore \
    --no-pretty --no-fancy-input --no-detect-urls --no-suggest-shell-commands \
    --chat-history-file "$AGENTLAB_AGENT_LOGS/chat.md" --input-history-file "$settings/input" \
    "$@" --message-file "$AGENTLAB_INSTRUCTION_PATH"
