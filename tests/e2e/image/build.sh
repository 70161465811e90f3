#!/usr/bin/env bash
# Builds mpsd's image from images/Dockerfile on a base made by debootstrap, for machines that can pull no image.
#   build.sh                prints FILE TAG: a docker archive and the image's name in it
#   build.sh --oci FOLDER   writes an OCI layout, made anew and dated SOURCE_DATE_EPOCH, for `make release`; BASE=IMAGE is
#                           pulled in place of the base, and needs no debootstrap
# Needs root, Debian 12's buildah and debootstrap, python3 with pip. What was made before of the same files is used again:
# the base for as long as build.sh says the same, the image while nothing that reaches it changes.
# E2E_CACHE=FOLDER (~/.cache/mpsd-e2e) holds it all, in about 1 GiB.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../../..")
cache=$(realpath -m "${E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mpsd-e2e}")
suite=bookworm
packages=python3,python3-venv,tini,ca-certificates
mkdir -p "$cache"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "image/build.sh: $*" >&2; }
key_of() { sha256sum | cut -c1-12; }

# vfs, and below chroot: neither needs namespaces, mounts or anything else of the kernel that a container may lack.
buildah_here() { buildah --root "$cache/storage" --runroot "$cache/runroot" --storage-driver vfs "$@"; }

# Where this machine gets Debian from.
mirror() {
  apt-get indextargets --format '$(LABEL) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk -v suite=$suite '$1 == "Debian" && $2 == suite {print $3; exit}'
}

# The same packages become the same bytes: without what the machine or the time has left, and with bytecode that is not
# checked against the times of its sources.
make_base() { # FILE
  local proxy
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  ${proxy:+env http_proxy="$proxy"} debootstrap --variant=minbase --include=$packages $suite "$work/base" $(mirror) \
    >"$work/debootstrap.log" 2>&1 || { tail -20 "$work/debootstrap.log" >&2; return 1; }
  chroot "$work/base" sh -c 'PYTHONHASHSEED=0 python3 -m compileall -qf --invalidation-mode unchecked-hash /usr/lib/python3*'
  tar -C "$work/base" --exclude=./var/cache --exclude=./var/lib/apt/lists --exclude=./usr/share/{doc,man,locale} \
    --exclude='./var/log/*' --exclude=./etc/{hostname,resolv.conf,apt/sources.list} \
    --exclude=./dev --numeric-owner --sort=name --mtime=@0 -cf "$1.part" .
  rm -rf --one-file-system "$work/base"
  mv "$1.part" "$1"
}

base_key=$(sed -n '/^suite=/p;/^packages=/p;/^make_base/,/^}/p' "$0" | key_of)
base=$cache/base-$base_key.tar
image_key=$({
  echo "$base_key"
  cd "$top"
  find images limits manifests/install.yaml mpsd pyproject.toml README.md LICENSE .dockerignore -type f -not -path '*/__pycache__/*' -print0 |
    sort -z | xargs -0 sha256sum
} | key_of)
tag=localhost/mpsd:$image_key
archive=$cache/mpsd-$image_key.tar

# Sets `from` to the base, which is made where it is not there yet.
have_base() {
  if [[ ! -f $base ]]; then
    say "base"
    make_base "$base"
  fi
  from=localhost/mpsd-base:$base_key
  if ! buildah_here inspect --type image "$from" >/dev/null 2>&1; then
    container=$(buildah_here from scratch)
    buildah_here add --quiet "$container" "$base" / >/dev/null
    buildah_here config --cmd /bin/bash "$container"
    buildah_here commit --quiet --rm --timestamp 0 "$container" "$from" >/dev/null
  fi
}

build() { # TAG [OPTION…]
  say "image"
  python3 "$here/pip_here.py" "$work/pip.conf" >"$work/folders"
  mapfile -t folders <"$work/folders"
  volumes=()
  for folder in "${folders[@]}"; do volumes+=(--volume "$folder:$folder:ro"); done
  # without layers: vfs copies everything for each, which takes longer than to do all steps again
  buildah_here build --isolation chroot --layers=false "${@:2}" --file "$top/images/Dockerfile" \
    --build-arg "BASE=$from" --build-arg "REVISION=$(git -C "$top" rev-parse HEAD 2>/dev/null || echo unknown)" \
    --secret "id=pip,src=$work/pip.conf" --secret "id=ca,src=/etc/ssl/certs/ca-certificates.crt" \
    "${volumes[@]}" --tag "$1" "$top" >"$work/build.log" 2>&1 || { tail -40 "$work/build.log" >&2; exit 1; }
}

remove() { # TAG
  buildah_here rmi --force "$1" >/dev/null
  buildah_here rmi --prune >/dev/null
}

if [[ ${1:-} == --oci ]]; then
  from=${BASE:-} pull=(--pull)
  [[ $from ]] || { have_base; pull=(--pull-never); }
  tag=localhost/mpsd:oci-$$
  build "$tag" "${pull[@]}" --timestamp "$SOURCE_DATE_EPOCH"
  buildah_here push --quiet "$tag" "oci:$2"
  remove "$tag"
  exit
fi

if [[ ! -f $archive ]]; then
  have_base
  build "$tag" --pull-never
  buildah_here push --quiet "$tag" "docker-archive:$archive.part:$tag"
  mv "$archive.part" "$archive"
  remove "$tag"
  # the newest two, so that going back and forth between two states costs nothing
  ls -t "$cache"/mpsd-*.tar | tail -n +3 | xargs -r rm -f
fi
touch "$archive"
echo "$archive $tag"
