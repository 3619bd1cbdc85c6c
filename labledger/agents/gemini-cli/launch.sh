#!/bin/sh
# Starts Gemini CLI with the instruction on its standard input.
. "${0%/*}/prelude.sh"
export GEMINI_API_KEY="$AGENTLAB_MODEL_TOKEN" GOOGLE_GEMINI_BASE_URL="$AGENTLAB_MODEL_URL"
export GEMINI_CLI_HOME="$settings" GEMINI_CLI_TRUST_WORKSPACE=true GEMINI_CLI_NO_RELAUNCH=true
export GEMINI_TELEMETRY_ENABLED=false
excluded='"google_web_search", "web_fetch"'
[ -z "${AGENT_WEB_TOOLS:-}" ] || excluded=''
mkdir "$settings/.gemini"
cat >"$settings/.gemini/settings.json" <<SETTINGS
{
  "security": {"auth": {"selectedType": "gemini-api-key"}},
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "tools": {"exclude": [$excluded]}
}
SETTINGS
write_node_filter .gemini
exec "$agent/bin/node" --require "$settings/filter.cjs" \
    "$agent/app/node_modules/@google/gemini-cli/bundle/gemini.js" --yolo --output-format stream-json -m "$AGENTLAB_MODEL" "$@" <"$AGENTLAB_INSTRUCTION_PATH"
