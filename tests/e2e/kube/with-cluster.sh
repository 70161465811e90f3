#!/usr/bin/env bash
# Runs a command with KUBECONFIG naming a Kubernetes of its own, and takes everything down again, whatever happens.
#   with-cluster.sh [--control-plane | --first LINE] COMMAND…
# With a node, unless --control-plane, and with mpsd's image on it, built from this checkout. LINE is for the shell: what
# needs no image, and is done on the cluster before COMMAND while the image is built. On a bare Debian 12 as root it
# installs what it needs. It is Kubernetes 1.20.2 with Debian's containerd, or KUBE_PROGRAMS=FOLDER (kube-apiserver,
# kube-scheduler, kube-controller-manager, kubelet) and CONTAINERD=FOLDER (containerd, ctr, containerd-shim-runc-v2), or
# sid or trixie for what containerd.sh fetches, of the versions that versions.sh knows. The command also finds in its
# environment MPSD_E2E_STATE (logs, sockets), MPSD_E2E_PROGRAMS, MPSD_E2E_IMAGE (the image's name) and
# MPSD_E2E_KUBE_SCHEDULER (that of kube-scheduler's). E2E_KEEP_LOGS=FOLDER keeps the logs.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
part= first=
. "$here/versions.sh"
case ${1:-} in
  --control-plane) part=control-plane; shift ;;
  --first) first=$2; shift 2 ;;
esac
if [[ ${KUBE_PROGRAMS+set} ]]; then
  [[ $KUBE_PROGRAMS ]] || { echo "KUBE_PROGRAMS is empty: name a folder of Kubernetes' programs, or unset it" >&2; exit 2; }
  known "$KUBE_PROGRAMS" || exit 2
fi
if [[ ${CONTAINERD:-} == @(sid|trixie) ]]; then
  folder=$("$here/containerd.sh" "$CONTAINERD") ||
    { echo "CONTAINERD=$CONTAINERD: not fetched; Debian 12's apt can, elsewhere name a folder (containerd.sh says with what)" >&2; exit 2; }
  CONTAINERD=$folder
fi
if [[ ${CONTAINERD:-} ]]; then
  missing=()
  for program in containerd ctr containerd-shim-runc-v2; do [[ -x $CONTAINERD/$program ]] || missing+=("$program"); done
  ((${#missing[@]} == 0)) || { echo "CONTAINERD=$CONTAINERD: lacks ${missing[*]}" >&2; exit 2; }
  "$CONTAINERD/containerd" --version >/dev/null 2>&1 || { echo "CONTAINERD=$CONTAINERD: no containerd that runs here" >&2; exit 2; }
  export PATH=$(realpath "$CONTAINERD"):$PATH
fi

packages=(etcd-server openssl)
[[ $part ]] || packages+=(containerd runc containernetworking-plugins iptables conntrack busybox-static buildah debootstrap)
is_there() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }
missing=()
for package in "${packages[@]}"; do is_there "$package" || missing+=("$package"); done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-1.20.2
[[ ${KUBE_PROGRAMS:-} || -x $cache/kube-scheduler-preempting ]] || is_there dpkg-dev || missing+=(dpkg-dev)
if ((${#missing[@]})); then
  apt-get -qq -o APT::Sandbox::User=root update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends "${missing[@]}" >/dev/null
fi
command -v kubectl >/dev/null || { echo "with-cluster.sh: kubectl is not on PATH" >&2; exit 1; }

programs=${KUBE_PROGRAMS:-$("$here/build.sh")}
known "$programs"
if [[ ! $part ]]; then # a machine has room for one node
  exec 9>/tmp/mpsd-e2e.lock
  flock --nonblock 9 || { echo "with-cluster.sh: waiting for another one on this machine" >&2; flock 9; }
fi
state=$(mktemp -d /tmp/mpsd-e2e.XXXX)
building=
down() {
  [[ ! $building ]] || kill -- -"$building" 2>/dev/null || true
  "$here/up.sh" "$programs" "$state" stop || true
  if [[ ${E2E_KEEP_LOGS:-} ]]; then
    mkdir -p "$E2E_KEEP_LOGS"
    cp "$state"/*.log "$E2E_KEEP_LOGS" || true
  fi
  rm -rf "$state"
}
trap down EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [[ ! $part ]]; then
  setsid "$here/../image/build.sh" >"$state/image" 9>&- &
  building=$!
fi
"$here/up.sh" "$programs" "$state" start $part 9>&-
[[ $part ]] || echo "with-cluster.sh: $(versions)" >&2
export KUBECONFIG=$state/kubeconfig MPSD_E2E_STATE=$state MPSD_E2E_PROGRAMS=$programs
if [[ ! $part ]]; then
  [[ ! $first ]] || sh -c "$first" 9>&-
  wait "$building" || { echo "with-cluster.sh: no image" >&2; exit 1; }
  building=
  read -r archive MPSD_E2E_IMAGE <"$state/image"
  "$here/up.sh" "$programs" "$state" import "$archive" 9>&-
  export MPSD_E2E_IMAGE MPSD_E2E_KUBE_SCHEDULER=local/kube-scheduler:$version
fi
"$@" 9>&-
