#!/bin/sh
# Starts opencode with the instruction on its standard input.
. "${0%/*}/prelude.sh"
export OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1
case $AGENTLAB_MODEL_API in
    anthropic-messages) npm=@ai-sdk/anthropic url=$AGENTLAB_MODEL_URL/v1 ;;
    openai-responses) npm=@ai-sdk/openai url=$AGENTLAB_MODEL_URL/v1 ;;
    openai-chat) npm=@ai-sdk/openai-compatible url=$AGENTLAB_MODEL_URL/v1 ;;
    gemini) npm=@ai-sdk/google url=$AGENTLAB_MODEL_URL/v1beta ;;
esac
export OPENCODE_CONFIG="$settings/opencode.json"
cat >"$OPENCODE_CONFIG" <<SETTINGS
{
  "autoupdate": false,
  "share": "disabled",
  "small_model": "labledger/$AGENTLAB_MODEL",
  "enabled_providers": ["labledger"],
  "provider": {
    "labledger": {
      "npm": "$npm",
      "options": {"baseURL": "$url", "apiKey": "{env:AGENTLAB_MODEL_TOKEN}"},
      "models": {"$AGENTLAB_MODEL": {}}
    }
  }
}
SETTINGS
exec "$agent"/app/node_modules/opencode-linux-*/bin/opencode run --format json --auto \
    --model "labledger/$AGENTLAB_MODEL" --title labledger "$@" <"$AGENTLAB_INSTRUCTION_PATH"
