#!/bin/sh
# Starts mini-SWE-agent, which gets the instruction as a text in memory: an argument may be too long.
. "${0%/*}/prelude.sh"
export MSWEA_GLOBAL_CONFIG_DIR="$settings/mini" MSWEA_CONFIGURED=true MSWEA_SILENT_STARTUP=1
# Models that LiteLLM has no price of are no error; and it fetches no prices.
export MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False
# Otherwise LiteLLM would set what a project's .env says.
export LITELLM_MODE=PRODUCTION
# By its path: a project may have a mini.yaml.
for config in "$agent"/app/lib/python3*/site-packages/minisweagent/config/mini.yaml; do
    set -- --config "$config" "$@"
done
case $AGENTLAB_MODEL_API in
    anthropic-messages)
        export ANTHROPIC_API_KEY="$AGENTLAB_MODEL_TOKEN"
        set -- --model "anthropic/$AGENTLAB_MODEL" --model-class litellm \
            --config "model.model_kwargs.api_base=$AGENTLAB_MODEL_URL" "$@"
        ;;
    openai-chat | openai-responses)
        class=litellm
        [ "$AGENTLAB_MODEL_API" = openai-chat ] || class=litellm_response
        export OPENAI_API_KEY="$AGENTLAB_MODEL_TOKEN"
        set -- --model "openai/$AGENTLAB_MODEL" --model-class "$class" \
            --config "model.model_kwargs.api_base=$AGENTLAB_MODEL_URL/v1" "$@"
        ;;
    gemini)
        export GEMINI_API_KEY="$AGENTLAB_MODEL_TOKEN" GEMINI_API_BASE="$AGENTLAB_MODEL_URL/v1beta"
        set -- --model "gemini/$AGENTLAB_MODEL" --model-class litellm "$@"
        ;;
esac
start='
import os, sys
from minisweagent.run.mini import app
with open(os.environ["AGENTLAB_INSTRUCTION_PATH"], encoding="utf-8") as file:
    sys.argv = ["mini", "--task", file.read(), *sys.argv[1:]]
app()
'
exec "$agent/app/bin/python" -I -c "$start" "$@" --yolo --exit-immediately \
    --output "$AGENTLAB_AGENT_LOGS/mini.traj.json"
