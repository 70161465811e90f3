#!/usr/bin/env bash
# Debian's podman, conmon, crun and dockerd, and runc and containerd where this machine has none: 45 MB the first time.
exec "$(dirname "$0")/../programs.sh" mpsd-host "podman=podman libsubid4 libgpgme11 libassuan0" conmon=conmon "crun=crun libyajl2" dockerd=docker.io \
  docker=docker.io runc=runc containerd=containerd ctr=containerd
