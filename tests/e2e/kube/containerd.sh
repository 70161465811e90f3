#!/usr/bin/env bash
# A newer containerd than Debian 12's, unpacked and not installed: it runs on Debian 12's libc and with its runc.
#   containerd.sh trixie|sid     containerd 1.7 or 2.1; prints the folder of its programs, kept in ~/.cache/mpsd-containerd
# Needs Debian 12 with apt. Elsewhere: CONTAINERD=FOLDER with containerd, ctr and containerd-shim-runc-v2, of
# containerd's own releases (containerd-VERSION-linux-amd64.tar.gz).
set -euo pipefail
suite=${1:?trixie or sid}
folder=$(realpath -m "${XDG_CACHE_HOME:-$HOME/.cache}/mpsd-containerd/$suite")
if [[ ! -x $folder/usr/bin/containerd ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  mkdir -p parts lists/partial cache/archives/partial
  mirror=$(apt-get indextargets --format '$(LABEL) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 == "bookworm" {print $3; exit}')
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$suite" \
    /usr/share/keyrings/debian-archive-keyring.gpg >parts/debian.sources
  apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/parts"
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update >&2
  "${apt[@]}" download containerd >&2
  dpkg -x containerd_*.deb unpacked
  mkdir -p "${folder%/*}"
  rm -rf "$folder"
  mv unpacked "$folder"
fi
echo "$folder/usr/bin"
