#!/usr/bin/env bash
# Debian's chromium and chromedriver, what of their libraries this machine has not, a font with Chinese, and axe-core from
# the npm registry, unpacked and not installed: nothing of this machine's own is changed. Where all of chromium is
# installed, that is used. Prints the folder.
#   programs.sh [FOLDER]     default: ~/.cache/mpsd-chromium
# Needs Debian 12 with apt, and npm. 130 MB are fetched the first time, nothing after that.
set -euo pipefail
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/mpsd-chromium}")
axe=4.14.1
axe_integrity=sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==
ready=$folder/.ready-1
mkdir -p "$folder"
exec 9>"$folder/.lock"
flock 9  # several that start at once fetch once

wanted=(chromium chromium-common chromium-driver)
browser=$folder/usr/lib/chromium driver=$folder/usr/bin/chromedriver
if [[ ! -e $ready || ! -e $browser/icudtl.dat || ! -e $driver ]]; then # of chromium-common: chromium needs it beside it
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  apt=(apt-get -qq -o APT::Sandbox::User=root)
  states=$(dpkg-query -W -f '${db:Status-Status} ' "${wanted[@]}" 2>/dev/null || true)
  rm -rf "$browser" "$driver"
  if [[ $states == "installed installed installed " ]]; then
    mkdir -p "${browser%/*}" "${driver%/*}"
    ln -s /usr/lib/chromium "$browser"
    ln -s /usr/bin/chromedriver "$driver"
    wanted=()
  fi
  fonts=(fonts-inter fonts-wqy-microhei fonts-dejavu-core)
  # What apt would install and this machine has not; simulated, so that nothing is.
  missing() {
    ((${#wanted[@]} == 0)) ||
      "${apt[@]}" --simulate --no-install-recommends install "${wanted[@]}" | awk '$1 == "Inst" {print $2}'
  }
  fetch() {
    local names && names=$(missing) || return
    mapfile -t packages < <(printf '%s' "$names")
    "${apt[@]}" download "${wanted[@]}" "${fonts[@]}" "${packages[@]}"
  }
  { fetch || { "${apt[@]}" update && fetch; }; } >&2
  for archive in *.deb; do dpkg -x "$archive" "$folder"; done

  npm pack --silent "axe-core@$axe" >&2
  got=sha512-$(openssl dgst -sha512 -binary "axe-core-$axe.tgz" | base64 -w0)
  [[ $got == "$axe_integrity" ]] || { echo "axe-core $axe is not what it was: $got" >&2; exit 1; }
  tar -xzf "axe-core-$axe.tgz" -C "$folder" package/axe.min.js package/LICENSE

  mkdir -p "$folder/fonts-cache"
  cat >"$folder/fonts.conf" <<FONTS
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>$folder/usr/share/fonts</dir>
  <cachedir>$folder/fonts-cache</cachedir>
  <alias><family>system-ui</family><prefer><family>Inter</family><family>WenQuanYi Micro Hei</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Inter</family><family>WenQuanYi Micro Hei</family></prefer></alias>
</fontconfig>
FONTS
  touch "$ready"
fi
echo "$folder"
