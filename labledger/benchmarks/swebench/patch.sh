#!/bin/bash
# patch.sh begin    before the agent: keeps what is in the repository
# patch.sh collect  after the agent: writes the prediction, /swebench/model.patch
#
# The patch is the difference between two trees of the working folder's files, both written by the
# same rules into a repository of our own, /swebench/git. So neither the configuration, index, locks,
# hooks or objects of the agent's repository matter, nor changes that the image had already. Only
# .gitignore files and what the image itself ignores decide which new files count.
#
# Repositories inside the repository are left out. A patch holds UTF-8 text alone, because a file of
# predictions is JSON: files in other encodings are in it as binary files. /swebench/patch_notes says
# what was left out, and why there is no patch if git could not write one.
set -u
state=/swebench
store=$state/git
notes=$state/patch_notes
looked_at_singly=200

begin() {
  mkdir -p "$state" && rm -rf "$store" || exit 1
  in_image() { git -c safe.directory='*' -C "$WORKSPACE" "$@"; }
  # What is no repository is refused here: the status is that of setup.
  in_image rev-parse HEAD >"$state/base" || exit 1
  local top base objects exclude index ignored format
  base=$(cat "$state/base")
  top=$(in_image rev-parse --show-toplevel) || exit 1
  objects=$(in_image rev-parse --git-path objects)
  exclude=$(in_image rev-parse --git-path info/exclude)
  index=$(in_image rev-parse --git-path index)
  ignored=$(in_image config --path core.excludesFile) ||
    ignored=${XDG_CONFIG_HOME:-${HOME-}/.config}/git/ignore
  format=$(in_image config extensions.objectFormat) || format=sha1
  cd "$WORKSPACE" || exit 1
  isolate
  GIT_DEFAULT_HASH=$format git init -q --bare --template= "$store" || exit 1
  mkdir -p "$store/info" "$store/objects/info"
  { cat "$exclude" && echo; cat "$ignored" && echo; } >"$store/info/exclude" 2>/dev/null
  # No conversion: the files are compared as they are.
  echo '* -text -ident -filter -working-tree-encoding !eol !diff' >"$store/info/attributes"
  absolute "$objects" >"$store/objects/info/alternates"
  absolute "$index" >"$store/agents_index"
  echo "$top" >"$store/top"
  in_store
  write_tree "$base" >"$store/begin" || exit 1
  git ls-files -o -i --exclude-standard >"$store/ignored"
  # A copy of all of it, so that nothing is missing whatever becomes of the repository. If that takes
  # too long, the objects of the repository are needed.
  if git rev-list --objects "$(cat "$store/begin")" | cut -d' ' -f1 |
    limited git pack-objects -q --window=0 --compression=1 "$store/objects/pack/pack" >/dev/null; then
    rm -rf "$store"/objects/[0-9a-f][0-9a-f] "$store/objects/info/alternates"
  fi
  exit 0
}

limited() {
  if command -v timeout >/dev/null 2>&1; then timeout 120 "$@"; else "$@"; fi
}

absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac }

# Leaves git with no configuration but that of the repository of our own.
isolate() {
  unset "${!GIT_@}" 2>/dev/null
  export HOME=$store XDG_CONFIG_HOME=$store LC_ALL=C
  export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1
  export GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_TERMINAL_PROMPT=0
}

in_store() {
  GIT_DIR=$store GIT_WORK_TREE=$(cat "$store/top") GIT_INDEX_FILE=$store/own_index
  export GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
  cd "$GIT_WORK_TREE"
}

# Prints the tree of the files in the working folder. Of what git ignores, what is in tree $1 counts.
write_tree() {
  rm -f "$GIT_INDEX_FILE" "$GIT_INDEX_FILE.lock"
  git read-tree "$1" || return 1
  local path
  local -a submodules=()
  while IFS= read -r -d '' path; do
    is_plain "$path" || submodules+=(":(exclude,literal)$path")
  done < <(gitlinks)
  # Ends with 1 if single files cannot be read, such as repositories without a commit. It is not let
  # into submodules, in which it would run git with their configuration.
  git -c advice.addEmbeddedRepo=false add -A --ignore-errors -- . "${submodules[@]}" >&2
  [ $? -le 1 ] || return 1
  add_forced
  keep_sparse "$1"
  drop_ignored "$1"
  git write-tree
}

# Prints the paths of the submodules in the index, each with a NUL.
gitlinks() {
  git ls-files -s -z | grep -z '^160000 ' | while IFS= read -r -d '' entry; do
    printf '%s\0' "${entry#*$'\t'}"
  done
}

# Tells whether submodule $1 has files and never was a repository, and makes it an ordinary folder.
is_plain() {
  if [ -e "$1/.git" ] || [ -L "$1/.git" ]; then
    printf '%s\0' "$1" >>"$store/repositories"
    return 1
  fi
  ! grep -qzxFe "$1" "$store/repositories" 2>/dev/null && [ -n "$(ls -A "$1" 2>/dev/null)" ] &&
    git update-index --force-remove -- "$1"
}

# Runs git with a copy of the agent's index.
with_agents_index() {
  cp -- "$(cat "$store/agents_index")" "$store/agents_copy" &&
    GIT_INDEX_FILE=$store/agents_copy git "$@"
} 2>/dev/null

# Adds the files that git ignores and that were added nevertheless (`git add --force`).
add_forced() {
  with_agents_index ls-files -s -c -i --exclude-standard | grep -v '^160000 ' | cut -f2- |
    git update-index --add --remove --stdin
}

# Drops the new files since tree $1 that the image had, ignored: a patch cannot make what is there.
drop_ignored() {
  [ -s "$store/ignored" ] || return 0
  git diff-index --cached --name-only --diff-filter=A "$1" | grep -xFf "$store/ignored" |
    git update-index --force-remove --stdin
}

# Keeps the files of tree $1 that are only not checked out (`git sparse-checkout`).
keep_sparse() {
  local path
  declare -A hidden=()
  while IFS= read -r path; do hidden[$path]=1; done < <(
    with_agents_index ls-files -t | sed -n 's/^S //p'
  )
  [ ${#hidden[@]} -gt 0 ] || return 0
  declare -A gone=()
  while IFS= read -r path; do
    [ -z "${hidden[$path]-}" ] || gone[$path]=1
  done < <(git diff-index --cached --name-only --diff-filter=D "$1")
  git ls-tree -r "$1" | while IFS= read -r entry; do
    [ -z "${gone[${entry#*$'\t'}]-}" ] || printf '%s\n' "$entry"
  done | git update-index --index-info
}

collect() {
  mkdir -p "$state"
  rm -rf "$state/model.patch" "$state/made.patch" "$notes"
  [ ! -e /agentlab/out/no_prediction ] || exit 0
  if [ -f /agentlab/out/model.patch ]; then
    cp /agentlab/out/model.patch "$state/made.patch" && publish
    exit 0
  fi
  # An agent that removed what was kept of its repository, or the working folder, left no prediction.
  [ -s "$store/begin" ] || gone "$store, which patch.sh had made"
  isolate
  in_store || gone "the working folder"
  local first last
  first=$(cat "$store/begin")
  last=$(write_tree "$first" 2>"$store/errors") || give_up "$store/errors"
  cat "$store/errors"
  name_nested "$first"
  difference "$first" "$last" --find-renames >"$state/made.patch" 2>"$store/errors" ||
    give_up "$store/errors"
  if is_gradable "$state/made.patch" && ! is_text "$state/made.patch"; then
    as_text "$first" "$last" >"$state/made.patch" 2>"$store/errors" || give_up "$store/errors"
  fi
  publish
  exit 0
}

publish() { mv -f "$state/made.patch" "$state/model.patch"; }

gone() {
  printf 'removed\t%s\n' "$1" >"$notes"
  exit 0
}

give_up() {
  rm -f "$state/made.patch"
  cat "$1" >&2
  printf 'failed\t%s\n' "$(head -c 2000 "$1" | tr '\n\t' '  ')" >"$notes"
  exit 1
}

difference() {
  local first=$1 last=$2
  shift 2
  git diff --binary --no-color --no-ext-diff --no-textconv --src-prefix=a/ --dst-prefix=b/ \
    --ignore-submodules=all "$first" "$last" "$@"
}

# Notes the repositories inside the repository, and the submodules in which a file was written: their
# files are in no patch.
name_nested() {
  local path
  {
    git diff-index --cached --raw --ignore-submodules=none "$1" |
      sed -n $'s/^:[0-9]* 160000 [^\t]*\t//p'
    gitlinks | while IFS= read -r -d '' path; do
      [ -z "$(written_in "$path" | head -n 1)" ] || printf '%s\n' "$path"
    done
    find . -path ./.git -prune -o -name .git -print 2>/dev/null | while IFS= read -r path; do
      path=${path#./}
      path=${path%/.git}
      [ -n "$(git ls-files -- ":(literal)$path" | head -n 1)" ] ||
        git check-ignore -q -- "$path" || printf '%s\n' "$path"
    done
  } | sort -u | head -n 100 | sed $'s/^/left_out\t/' >"$notes"
  [ -s "$notes" ] || rm -f "$notes"
}

# Prints the files in folder $1 that were written since setup, without those of git.
written_in() {
  find "./$1" -newer "$store/begin" -type f ! -name .git ! -path '*/.git/*' 2>/dev/null
}

# Tells whether a patch has something in it, and no more than a prediction may have.
is_gradable() {
  local bytes
  bytes=$(wc -c <"$1")
  [ "$bytes" -gt 0 ] && [ "$bytes" -le 8388608 ]
}

# Tells whether a file is UTF-8 without NUL. git warns about a message that is not.
is_text() {
  local warning
  warning=$(GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x \
    git commit-tree -F "$1" "$(cat "$store/begin")" 2>&1 >/dev/null) && [ -z "$warning" ]
}

# Prints the patch with each file that is not UTF-8 as a binary file, or all files if they are many.
as_text() {
  local first=$1 last=$2 path
  local -a paths=() binary=()
  mapfile -d '' -t paths < <(
    git diff --no-renames --name-only -z --ignore-submodules=all "$first" "$last"
  )
  if [ ${#paths[@]} -le $looked_at_singly ]; then
    for path in "${paths[@]}"; do
      difference "$first" "$last" --no-renames -- ":(literal)$path" >"$store/one.patch" || return 1
      is_text "$store/one.patch" || binary+=(":(literal)$path")
    done
    difference "$first" "$last" --no-renames -- . "${binary[@]/#:(literal)/:(exclude,literal)}" ||
      return 1
  fi
  echo '* -diff' >>"$store/info/attributes"
  difference "$first" "$last" --no-renames -- "${binary[@]}"
}

"$1"
