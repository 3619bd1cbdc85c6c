# What every launch.sh of an agent begins with: `. "${0%/*}/prelude.sh"`.
#
# Checks the variables of labledger, and makes two folders: $settings, a new temporary one for the
# agent's settings and caches, and $AGENTLAB_AGENT_LOGS for its own logs. $agent is the agent's own
# folder. HOME stays what it is if the user can write there: the image may have put what its tools need
# into it. Otherwise it becomes a folder in $settings. Needs `mkdir` and `rm` of
# the image.
set -eu
agent=${0%/*}
: "${AGENTLAB_MODEL:?names no model}" "${AGENTLAB_MODEL_API:?names no API}"
: "${AGENTLAB_MODEL_URL:?is not set}" "${AGENTLAB_MODEL_TOKEN:?is not set}"
if ! [ -r "${AGENTLAB_INSTRUCTION_PATH:?is not set}" ]; then
    echo "$0: cannot read the instruction $AGENTLAB_INSTRUCTION_PATH" >&2
    exit 2
fi
# Its name is the same in each trial if it can be: agents tell it to their models.
settings=${TMPDIR:-/tmp}/labledger-agent
if ! mkdir -m 700 "$settings" 2>/dev/null; then
    settings=$settings-$$
    mkdir -m 700 "$settings"
fi
mkdir -p "$AGENTLAB_AGENT_LOGS"
# Tried, since `[ -w` says nothing of a read-only file system.
if (: >"${HOME:-/proc}/.labledger-agent-$$") 2>/dev/null; then
    rm -f "$HOME/.labledger-agent-$$"
else
    HOME=$settings/home
    mkdir "$HOME"
fi
export HOME
