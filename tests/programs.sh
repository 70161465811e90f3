#!/usr/bin/env bash
# Programs of Debian's that tests need and this machine has not, unpacked and not installed: nothing of this machine's own
# is changed, and no service is started. Prints folders to add to PATH.
#   programs.sh NAME 'PROGRAM=PACKAGE[ PACKAGE...]'...     kept in ~/.cache/NAME
# Needs Debian 12 with apt; where there is none it says so, and the tests are skipped. What was fetched once is kept.
set -euo pipefail
folder=$(realpath -m "${XDG_CACHE_HOME:-$HOME/.cache}/$1")
shift

missing=()
for wanted; do
  command -v "${wanted%%=*}" >/dev/null && continue
  for package in ${wanted#*=}; do
    [[ -e $folder/.$package ]] || missing+=("$package") # a package that an older list did not name, too
  done
done

if ((${#missing[@]})); then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  command -v apt-get >/dev/null || { echo "${0##*/}: no apt-get here to fetch ${missing[*]} with" >&2; exit 1; }
  mkdir -p "$folder"
  exec 8>"$folder/../mpsd-programs.lock"
  flock 8 # apt-get update has one at a time
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  apt=(apt-get -qq -o APT::Sandbox::User=root)
  "${apt[@]}" download "${missing[@]}" >&2 || { "${apt[@]}" update && "${apt[@]}" download "${missing[@]}"; } >&2
  for archive in *.deb; do dpkg -x "$archive" "$folder"; done
  for package in "${missing[@]}"; do touch "$folder/.$package"; done
fi
echo "$folder/usr/sbin:$folder/usr/bin"
