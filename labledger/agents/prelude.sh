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

# Writes $settings/filter.cjs, a module that a program of Node loads first. The program then finds its
# settings (settings.json in a folder named $1) and .env files empty, but for those in $settings: a
# project, or HOME, could otherwise name another provider, refuse tools or run hooks. Only `readFileSync`
# is changed, by which programs read settings. Tools of agents read files in other ways.
write_node_filter() {
    cat >"$settings/filter.cjs" <<FILTER
const fs = require("node:fs");
const path = require("node:path");
const { fileURLToPath } = require("node:url");
const read = fs.readFileSync;
const own = __dirname + path.sep;
const isOfProject = (file) => {
  if (typeof file === "number" || Buffer.isBuffer(file)) return false;
  const full = path.resolve(file instanceof URL ? fileURLToPath(file) : String(file));
  const name = path.basename(full);
  const isOfFolder = path.basename(path.dirname(full)) === "$1";
  if (name !== ".env" && !(isOfFolder && /^settings[.](local[.])?json\$/.test(name))) return false;
  try {
    return !fs.realpathSync(full).startsWith(own);
  } catch {
    return false;
  }
};
fs.readFileSync = (file, options) => {
  if (!isOfProject(file)) return read(file, options);
  const text = path.basename(String(file)) === ".env" ? "" : "{}";
  const encoding = typeof options === "string" ? options : options?.encoding;
  return encoding ? text : Buffer.from(text);
};
require("node:module").syncBuiltinESMExports();
FILTER
}
