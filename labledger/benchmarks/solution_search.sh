#!/bin/sh
# solution_search.sh [ROOT [PLACE]]
#
# The agent solution-search of `labledger check`: changes nothing, and searches what an agent can read
# for the solution and the tests of the task. Prints one finding on each line, its fields with tabs.
#
# The folder PLACE, /labledger-search, has, for each file that is looked for, a folder KIND.NUMBER with the file (`file`)
# and what is looked for in others: groups of lines (`groups`, \037 between the lines). One file
# must have at least half of these groups. `lines` has one line of each group. `blobs` has ids of Git objects.
set -u
root=${1:-/}
here=${2:-/labledger-search}
LC_ALL=C
export LC_ALL
tab=$(printf '\t')
max_files=50

main() {
  for folder in "$here"/*.*; do
    [ -f "$folder/file" ] || continue
    kind=${folder##*/}
    kind=${kind%.*}
    same_files "$kind" "$folder/file"
    [ -s "$folder/groups" ] || continue
    similar_files "$kind" "$folder"
    packed_files "$kind" "$folder"
  done
  if command -v git >/dev/null 2>&1; then
    readable -name .git -prune -print 2>/dev/null | head -n 20 | while IFS= read -r path; do
      repository "$path"
    done
  fi
  echo done
}

# Finds files of this container as `find` does, without kernel folders and labledger's own.
readable() {
  find "$root" \( -path /proc -o -path /sys -o -path /dev -o -path "$here" -o -path /agentlab/deps \
    -o -path /agentlab/in -o -path /agentlab/state -o -path /agentlab/out \) -prune -o "$@"
}

same_files() {
  bytes=$(wc -c <"$2" | tr -d ' ')
  [ "$bytes" -ge 24 ] || return 0
  readable -type f -size "${bytes}c" -exec cmp -s "$2" {} \; -print 2>/dev/null |
    head -n "$max_files" | sed "s/^/same$tab$1$tab/"
}

similar_files() {
  total=$(wc -l <"$2/groups" | tr -d ' ')
  readable -type f -size +0 -size -16384 -exec grep -lF -f "$2/lines" {} + 2>/dev/null |
    head -n 500 | while IFS= read -r path; do
      found=$(groups_in "$2/groups" <"$path" 2>/dev/null) || found=0
      [ $((${found:-0} * 2)) -lt "$total" ] || printf 'similar\t%s\t%s\t%s\t%s\n' "$1" "$found" "$total" "$path"
    done | head -n "$max_files"
}

# Looks into compressed files and archives, but not into manuals.
packed_files() {
  total=$(wc -l <"$2/groups" | tr -d ' ')
  readable -type f -size -16384 \( -name '*.gz' -o -name '*.tgz' -o -name '*.bz2' -o -name '*.xz' \
    -o -name '*.zip' \) ! -path '*/share/doc/*' ! -path '*/share/man/*' -print 2>/dev/null |
    head -n 200 | while IFS= read -r path; do
      found=$(unpacked "$path" 2>/dev/null | head -c 200000000 | groups_in "$2/groups")
      [ $((${found:-0} * 2)) -lt "$total" ] || printf 'similar\t%s\t%s\t%s\t%s\n' "$1" "$found" "$total" "$path"
    done
}

unpacked() {
  case $1 in
    *.gz | *.tgz) gzip -dc "$1" ;;
    *.bz2) bzip2 -dc "$1" ;;
    *.xz) xz -dc "$1" ;;
    *.zip) unzip -p "$1" ;;
  esac
}

# Prints how many of the groups of lines in file $1 stand in the text on stdin, also in an archive.
groups_in() {
  tr '\000' '\n' | awk -v groups="$1" '
    BEGIN { while ((getline line < groups) > 0) wanted[line] = 1 }
    {
      sub(/^[ \t\r]+/, ""); sub(/[ \t\r]+$/, "")
      if ($0 == "") next
      three = before "\037" last "\037" $0; two = last "\037" $0
      if ($0 in wanted) { seen[$0] = 1 }
      if (two in wanted) { seen[two] = 1 }
      if (three in wanted) { seen[three] = 1 }
      before = last; last = $0
    }
    END { for (each in seen) found++; print found + 0 }'
}

# Looks into the objects of a repository, at its .git.
repository() {
  path=$1
  if [ -f "$1" ]; then
    path=$(sed -n 's/^gitdir: //p' "$1")
    case $path in /*) ;; *) path=${1%/.git}/$path ;; esac
  fi
  GIT_DIR=$path GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=/nonexistent GIT_NO_LAZY_FETCH=1
  export GIT_DIR GIT_CONFIG_NOSYSTEM GIT_CONFIG_GLOBAL HOME GIT_NO_LAZY_FETCH
  git rev-parse -q --verify HEAD >/dev/null 2>&1 || return 0
  if [ -s "$here/blobs" ]; then
    while IFS= read -r id; do
      [ "$(git cat-file -t "$id" 2>/dev/null)" = blob ] && printf 'blob\t%s\t%s\n' "$id" "$1"
    done <"$here/blobs"
  fi
  work=$(mktemp -d 2>/dev/null) || return 0
  limited git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' \
    >"$work/objects" 2>/dev/null
  sed -n 's/^commit //p' "$work/objects" | sort >"$work/commits"
  git rev-list HEAD 2>/dev/null | sort >"$work/own"
  comm -23 "$work/commits" "$work/own" >"$work/others"
  others=$(wc -l <"$work/others" | tr -d ' ')
  if [ "$others" -gt 0 ]; then
    newest=$(git log --no-walk=sorted -1 --format='%h %s' --stdin <"$work/others" 2>/dev/null | head -c 200)
    printf 'commits\t%s\t%s\t%s\n' "$others" "$newest" "$1"
  fi
  # What was in the files once: in other commits, in the newest of its own, and in objects of none.
  git rev-list --objects --all --reflog HEAD 2>/dev/null | cut -d' ' -f1 | sort >"$work/reached"
  sed -n 's/^blob //p' "$work/objects" | sort | comm -23 - "$work/reached" | head -n 2000 >"$work/loose"
  {
    limited git log -p --no-color --no-ext-diff --no-textconv --format= -n 500 HEAD
    head -n 500 "$work/others" |
      limited git log -p --no-walk --no-color --no-ext-diff --no-textconv --format= --stdin
    limited git cat-file --batch <"$work/loose"
  } 2>/dev/null | head -c 200000000 | sed 's/^[-+ ]//' >"$work/text"
  for folder in "$here"/solution.*; do
    [ -s "$folder/groups" ] || continue
    total=$(wc -l <"$folder/groups" | tr -d ' ')
    found=$(groups_in "$folder/groups" <"$work/text")
    [ $((${found:-0} * 2)) -lt "$total" ] || printf 'history\t%s\t%s\t%s\n' "$found" "$total" "$1"
  done
  rm -rf "$work"
}

limited() {
  if command -v timeout >/dev/null 2>&1; then timeout 60 "$@"; else "$@"; fi
}

main
