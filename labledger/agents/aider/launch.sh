#!/bin/sh
# Starts aider with one message, from a file. It leaves its changes uncommitted.
. "${0%/*}/prelude.sh"
# LiteLLM would set what a project's .env says, and fetch prices.
export LITELLM_MODE=PRODUCTION LITELLM_LOCAL_MODEL_COST_MAP=True
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
# aider reads .env, .aider.conf.yml and settings of models from the project and its parents, and sets
# what they say over the variables above; no option turns that off. It asks for no usage of a stream.
start='
import sys
from aider import main, models

parser_of, send = main.get_parser, models.Model.send_completion

def send_with_usage(model, messages, functions, stream, *rest, **more):
    params = {**(model.extra_params or {})}
    params.pop("stream_options", None)
    if stream:
        params["stream_options"] = {"include_usage": True}
    model.extra_params = params
    return send(model, messages, functions, stream, *rest, **more)

main.generate_search_path_list = lambda *_: []
main.get_parser = lambda files, root: parser_of([], root)
models.Model.send_completion = send_with_usage
sys.exit(main.main())
'
exec "$agent/app/bin/python" -I -c "$start" --model "$model" --weak-model "$model" \
    --editor-model "$model" --yes-always --no-check-update --no-show-release-notes \
    --no-show-model-warnings --no-analytics --no-auto-commits --no-dirty-commits --no-gitignore \
    --no-pretty --no-fancy-input --no-detect-urls --no-suggest-shell-commands \
    --chat-history-file "$AGENTLAB_AGENT_LOGS/chat.md" --input-history-file "$settings/input" \
    "$@" --message-file "$AGENTLAB_INSTRUCTION_PATH"
