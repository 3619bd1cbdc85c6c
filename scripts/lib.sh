# What the scripts beside this file share. They read it: `. "$(dirname "$0")/lib.sh"`.
# shellcheck shell=bash

say() { echo "${0##*/}: $*"; }
die() { echo "${0##*/}: error: $*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "this step needs root, and there is no sudo: ask an administrator for it: $*"
  fi
}

# As root, in a mount and a PID namespace of its own where they may be made: what the command mounts
# is gone when it ends, and it ends with the script, unless sudo stands between.
in_own_mounts() {
  local namespaces=(setpriv --pdeathsig KILL -- unshare --mount --pid --fork --kill-child=KILL --)
  (as_root "${namespaces[@]}" true) 2>/dev/null || namespaces=()
  as_root "${namespaces[@]+"${namespaces[@]}"}" "$@"
}

# One script at a time: apt does not wait while another one updates the lists.
apt_lock=/var/lib/apt/labledger.lock

apt_update() {
  as_root flock "$apt_lock" apt-get -qq update ||
    say "apt-get update met errors; going on with the lists it has"
}

# Installs packages from the lists that apt has.
apt_install() {
  local output
  output=$(as_root env DEBIAN_FRONTEND=noninteractive \
    flock "$apt_lock" apt-get -q -o DPkg::Lock::Timeout=300 \
    install -y --no-install-recommends "$@" 2>&1) || die "apt could not install $*: $(tail -n 20 <<<"$output")"
}

# The versions of Python that pyproject.toml names as supported, oldest first, one a line.
supported_pythons() {
  sed -n 's/^ *"Programming Language :: Python :: \(3\.[0-9]*\)",$/\1/p' pyproject.toml
}

# The version of a Python command, if it can make environments.
python_version() {
  "$1" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# The first of these commands that is a usable Python of that version.
python_among() {
  local version=$1 candidate
  shift
  for candidate in "$@"; do
    if [ "$(python_version "$candidate")" = "$version" ]; then echo "$candidate"; return; fi
  done
  return 1
}
