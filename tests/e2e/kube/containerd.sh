#!/usr/bin/env bash
# A newer containerd than Debian 12's, and with sid also a newer runc, unpacked and not installed.
#   containerd.sh trixie|sid     containerd 1.7 or 2.1; prints the folder of its programs, kept in ~/.cache/mpsd-containerd
# Needs Debian 12 with apt. Elsewhere: CONTAINERD=FOLDER with containerd, ctr and containerd-shim-runc-v2, of
# containerd's own releases (containerd-VERSION-linux-amd64.tar.gz), and perhaps runc.
set -euo pipefail
suite=${1:?trixie or sid}
folder=$(realpath -m "${XDG_CACHE_HOME:-$HOME/.cache}/mpsd-containerd/$suite")
if [[ ! -x $folder/usr/bin/containerd ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  mkdir -p parts lists/partial cache/archives/partial "${folder%/*}"
  mirror=$(apt-get indextargets --format '$(LABEL) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 == "bookworm" {print $3; exit}')
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$suite" \
    /usr/share/keyrings/debian-archive-keyring.gpg >parts/debian.sources
  apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
  fetch() { # FOLDER APT… PACKAGE…
    local into=$1
    shift
    "$@" >&2
    for archive in ./*.deb; do dpkg -x "$archive" "$into"; done
    rm ./*.deb
  }
  rm -rf "$folder" "$folder.part"
  "${apt[@]}" update >&2
  fetch "$folder.part" "${apt[@]}" download containerd
  if [[ $suite == sid ]]; then # user namespaces ask for runc 1.2; this one for a newer libc than Debian 12's
    fetch "$folder.part" "${apt[@]}" download runc libc6 libseccomp2
    fetch patchelf apt-get -qq -o APT::Sandbox::User=root download patchelf
    libraries=$folder/usr/lib/x86_64-linux-gnu
    mv "$folder.part/usr/sbin/runc" "$folder.part/usr/bin/runc"
    patchelf/usr/bin/patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --set-rpath "$libraries" \
      "$folder.part/usr/bin/runc"
  fi
  mv "$folder.part" "$folder"
fi
echo "$folder/usr/bin"
