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
# Without the configuration of the project or of HOME, which could name other providers, refuse tools or
# run plug-ins. The project's instructions are then to be named.
export OPENCODE_DISABLE_PROJECT_CONFIG=1 OPENCODE_TEST_HOME="$settings"
instructions=
for name in AGENTS.md CLAUDE.md CONTEXT.md; do
    folder=$PWD
    while :; do
        [ ! -f "$folder/$name" ] || instructions="$instructions${instructions:+, }\"$folder/$name\""
        [ -n "$folder" ] && [ ! -e "$folder/.git" ] || break
        folder=${folder%/*}
    done
    [ -z "$instructions" ] || break
done
case $PWD in *[\"\\]*) instructions='' ;; esac
config=${XDG_CONFIG_HOME:-$HOME/.config}
if [ -e "$config/opencode" ]; then
    # Tools find all else of that folder in another one.
    mkdir "$settings/config"
    for each in "$config"/*; do
        [ "${each##*/}" = opencode ] || ln -s "$each" "$settings/config/"
    done
    export XDG_CONFIG_HOME="$settings/config"
fi
OPENCODE_CONFIG_CONTENT=$(
    cat <<SETTINGS
{
  "autoupdate": false,
  "share": "disabled",
  "instructions": [$instructions],
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
)
export OPENCODE_CONFIG_CONTENT
exec "$agent"/app/node_modules/opencode-linux-*/bin/opencode run --format json --auto \
    --model "labledger/$AGENTLAB_MODEL" --title labledger "$@" <"$AGENTLAB_INSTRUCTION_PATH"
