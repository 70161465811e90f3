#!/usr/bin/env bash
# Debian's podman, conmon, crun and dockerd, and runc and containerd where this machine has none, unpacked and not installed:
# nothing of this machine's own is changed, and no service is started. Prints folders to add to PATH.
#   programs.sh [FOLDER]     default: ~/.cache/mpsd-host
# Needs Debian 12 with apt. 45 MB are fetched the first time, nothing after that.
set -euo pipefail
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mpsd-host}")
export PATH=$PATH:$folder/usr/sbin:$folder/usr/bin

declare -A package=([podman]=podman [conmon]=conmon [crun]="crun libyajl2" [dockerd]=docker.io [docker]=docker.io [runc]=runc
  [containerd]=containerd [ctr]=containerd)
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || read -ra missing <<<"${missing[*]} ${package[$program]}"
done

if ((${#missing[@]})); then
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  apt=(apt-get -qq -o APT::Sandbox::User=root)
  "${apt[@]}" download "${missing[@]}" >&2 || { "${apt[@]}" update && "${apt[@]}" download "${missing[@]}"; } >&2
  mkdir -p "$folder"
  for archive in *.deb; do dpkg -x "$archive" "$folder"; done
fi
echo "$folder/usr/sbin:$folder/usr/bin"
