#!/bin/sh
# Starts Qwen Code with the instruction on its standard input.
. "${0%/*}/prelude.sh"
export QWEN_HOME="$settings/qwen" QWEN_CODE_NO_RELAUNCH=true QWEN_CODE_SUPPRESS_YOLO_WARNING=1
mkdir "$QWEN_HOME"
case $AGENTLAB_MODEL_API in
    openai-chat | openai-responses)
        auth=openai
        [ "$AGENTLAB_MODEL_API" = openai-chat ] || auth=openai-responses
        export OPENAI_API_KEY="$AGENTLAB_MODEL_TOKEN" OPENAI_BASE_URL="$AGENTLAB_MODEL_URL/v1"
        ;;
    anthropic-messages)
        auth=anthropic
        export ANTHROPIC_API_KEY="$AGENTLAB_MODEL_TOKEN" ANTHROPIC_BASE_URL="$AGENTLAB_MODEL_URL"
        ;;
    gemini)
        auth=gemini
        export GEMINI_API_KEY="$AGENTLAB_MODEL_TOKEN" GOOGLE_GEMINI_BASE_URL="$AGENTLAB_MODEL_URL"
        ;;
esac
cat >"$QWEN_HOME/settings.json" <<'SETTINGS'
{
  "general": {"enableAutoUpdate": false, "disableAutoUpdate": true, "disableUpdateNag": true},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "tools": {"exclude": ["web_fetch", "web_search"]}
}
SETTINGS
write_node_filter .qwen
exec "$agent/bin/node" --expose-gc --require "$settings/filter.cjs" \
    "$agent/app/node_modules/@qwen-code/qwen-code/cli.js" \
    --yolo --output-format stream-json --auth-type "$auth" -m "$AGENTLAB_MODEL" "$@" \
    <"$AGENTLAB_INSTRUCTION_PATH"
