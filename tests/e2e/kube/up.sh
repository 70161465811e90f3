#!/usr/bin/env bash
# Starts or stops a Kubernetes of one machine on 127.0.0.1, out of the programs that build.sh made or of others that
# versions.sh knows, with the containerd on PATH.
#   up.sh PROGRAMS STATE start [control-plane]    without `control-plane` also containerd and a kubelet, node `node1`
#   up.sh PROGRAMS STATE stop
#   up.sh PROGRAMS STATE kubelet stop|start|kill  pods go on
#   up.sh PROGRAMS STATE api start|kill           what it has stored stays
#   up.sh PROGRAMS STATE import FILE              an image, for pods with imagePullPolicy Never or IfNotPresent
# Then: export KUBECONFIG=STATE/kubeconfig. Logs are in STATE/*.log. Needs root for the node.
# Images: local/busybox:1, local/kube-scheduler:VERSION and :VERSION-preempting, which asks extenders about preemption.
# There is no kube-proxy. With a node, pods reach the API as in any cluster (the service `kubernetes` has its address on
# this machine), and the API server reaches a webhook's pods by its service; no other service is routed.
# SCHEDULER_CONFIG=FILE configures the scheduler. NODE_LABELS=a=b,c=d labels the node. E2E_PORTS=N adds N to the ports of
# etcd and the API, so that a second control plane may run; of nodes there can be one.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
programs=$(realpath "$1")
state=$(realpath -m "$2")
. "$here/versions.sh"
known "$programs"
of_kubernetes
api_port=$((16443 + ${E2E_PORTS:-0}))
etcd_port=$((23790 + ${E2E_PORTS:-0}))
service_range=10.244.255.0/24
api_service=10.244.255.1
ours=/tmp/mpsd-e2e.run # /run/mpsd is this node's
mkdir -p "$state"
cd "$state"
export KUBECONFIG=$state/kubeconfig

begin() { # NAME COMMAND…
  local name=$1
  shift
  setsid nohup "$@" >>"$name.log" 2>&1 </dev/null &
  echo $! >"$name.pid"
}

# Ends what `begin` started, and returns when it is gone.
end() {
  [[ -f $1.pid ]] || return 0
  local pid
  pid=$(<"$1.pid")
  rm -f "$1.pid"
  kill "$pid" 2>/dev/null || return 0
  timeout 10 tail --pid="$pid" -f /dev/null || kill -KILL "$pid" 2>/dev/null || true
}

# await WHAT SECONDS COMMAND…
await() {
  local what=$1 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { echo "up.sh: $what did not come up; see $state/*.log" >&2; exit 1; }
    sleep 0.2
  done
}

ctr_here() { ctr -a "$state/containerd.sock" -n k8s.io "$@"; }

begin_api() {
  begin api "$programs/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" --secure-port $api_port \
    --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --endpoint-reconciler-type none --cert-dir certs \
    --token-auth-file tokens.csv --authorization-mode RBAC --allow-privileged --enable-aggregator-routing \
    --service-cluster-ip-range $service_range --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file sa.key --service-account-signing-key-file sa.key
}

await_api() { await "the API server" 90 kubectl get --raw /readyz; }

api_is_asked_to() {
  case $1 in
  start) begin_api && await_api ;;
  kill) kill -KILL "$(<api.pid)" && end api ;;
  esac
}

start_control_plane() {
  [[ -f sa.key ]] || openssl genrsa -out sa.key 2048 2>/dev/null
  echo 'admin-token,admin,1,"system:masters"' >tokens.csv
  local etcd=http://127.0.0.1:$etcd_port peer=http://127.0.0.1:$((etcd_port + 10))
  begin etcd etcd --data-dir etcd --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
    --unsafe-no-fsync
  begin_api
  kubectl config set-cluster here --server "https://127.0.0.1:$api_port" --insecure-skip-tls-verify >/dev/null
  kubectl config set-credentials admin --token admin-token >/dev/null
  kubectl config set-context here --cluster here --user admin >/dev/null
  kubectl config use-context here >/dev/null
  await_api
  begin scheduler "$programs/kube-scheduler" ${SCHEDULER_CONFIG:+--config "$SCHEDULER_CONFIG"} \
    --kubeconfig kubeconfig --leader-elect=false "${no_http[@]}" --secure-port 0
  begin controllers "$programs/kube-controller-manager" --kubeconfig kubeconfig --leader-elect=false \
    "${no_http[@]}" --secure-port 0 \
    --service-account-private-key-file sa.key --root-ca-file certs/apiserver.crt
  await "the controller manager" 60 kubectl get serviceaccount default
}

pod_networks() { find /run/netns -maxdepth 1 -name 'cni-*' -printf '%f\n' 2>/dev/null || true; }

# What kube-proxy does for the service `kubernetes`.
route_api() {
  ip address add $api_service/32 dev lo 2>/dev/null || true
  begin service python3 "$here/forward.py" $api_service 443 127.0.0.1 $api_port
}

# overlayfs where it works here: native copies an image for every container.
snapshotter() {
  mkdir -p try/{lower,upper,work,merged}
  if mount -t overlay overlay -o lowerdir=try/lower,upperdir=try/upper,workdir=try/work try/merged 2>/dev/null; then
    umount try/merged
    echo overlayfs
  else
    echo native
  fi
  rm -rf try
}

start_containerd() {
  if [[ -e /run/mpsd && ! -e $ours ]]; then
    echo "up.sh: /run/mpsd is there: mpsd runs on this machine, or did; remove it first" >&2
    exit 1
  fi
  rm -rf /run/mpsd
  touch $ours
  pod_networks >netns-before
  mkdir -p cni
  # what it has given out goes with this run: pods that are killed with the node give nothing back
  cat >cni/10-bridge.conflist <<-JSON
	{"cniVersion": "0.4.0", "name": "b", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
	 "ipMasq": false, "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "dataDir": "$state/addresses",
	 "routes": [{"dst": "0.0.0.0/0"}]}}]}
	JSON
  mkdir -p cdi containerd
  chmod 711 "$state" containerd # pods in a user namespace go through them
  of_containerd "$(snapshotter)" >containerd.toml
  begin containerd containerd -c containerd.toml
  await containerd 30 ctr_here version
  python3 "$here/busybox_image.py" busybox.tar
  import_image busybox.tar
  import_scheduler kube-scheduler ''
  import_scheduler "$extender_scheduler" -preempting
  rm program.tar
}

import_scheduler() { # PROGRAM SUFFIX
  python3 "$here/program_image.py" program.tar "local/kube-scheduler:$version$2" kube-scheduler "$programs/$1"
  import_image program.tar
}

import_image() { ctr_here images import --snapshotter "$(snapshotter)" "$1" >/dev/null; }

configure_kubelet() {
  cat >kubelet.yaml <<-'YAML'
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	failSwapOn: false
	cgroupDriver: cgroupfs
	enforceNodeAllocatable: []
	authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
	authorization: {mode: AlwaysAllow}
	readOnlyPort: 0
	evictionHard: {memory.available: 100Mi}
	YAML
  mkdir -p static # pods that are there before any API server is asked
  echo "staticPodPath: $state/static" >>kubelet.yaml
  ((!${#kubelet_fields[@]})) || printf '%s\n' "${kubelet_fields[@]}" >>kubelet.yaml
  grep -q '\bnode1\b' /etc/hosts || echo '127.0.0.1 node1 # mpsd e2e' >>/etc/hosts
}

start_kubelet() {
  begin kubelet "$programs/kubelet" --kubeconfig kubeconfig --config kubelet.yaml --hostname-override node1 \
    --root-dir /var/lib/kubelet --node-labels "${NODE_LABELS:-ack.node.gpu.schedule=mps}" "${kubelet_options[@]}"
}

# The process alone, as a restart of its service does.
kubelet_is_asked_to() {
  case $1 in
  start) start_kubelet ;;
  stop) end kubelet ;;
  kill) kill -KILL "$(<kubelet.pid)" && end kubelet ;;
  esac
}

start() {
  [[ ! -f api.pid ]] || { echo "up.sh: $state is in use; stop it first" >&2; exit 1; }
  if (: </dev/tcp/127.0.0.1/$api_port) 2>/dev/null; then
    echo "up.sh: somebody listens on port $api_port, perhaps another one of these" >&2
    exit 1
  fi
  start_control_plane
  [[ ${1:-} == control-plane ]] && return
  route_api
  start_containerd
  configure_kubelet
  start_kubelet
  await "the node" 90 kubectl wait --for=condition=Ready node/node1 --timeout=0
}

stop() {
  local each with_node=
  [[ ! -f containerd.pid ]] || with_node=yes
  end kubelet
  if [[ $with_node ]]; then
    ctr_here tasks ls -q 2>/dev/null | while read -r each; do ctr_here tasks rm -f "$each" >/dev/null 2>&1 || true; done
  fi
  for each in containerd service controllers scheduler api etcd; do end "$each"; done
  # with containerd 2 those of sandboxes outlive their task
  pgrep -f -- "^/.*containerd-shim-runc-v2 .*-address $state/containerd.sock" | xargs -r kill 2>/dev/null || true
  [[ ! $with_node ]] || clear_node
}

# What containerd, the network plugin, kubelet and mpsd leave behind on the machine.
clear_node() {
  local each
  # daemons outlive the container that started them
  sed -n 's/.*"pid": *\([0-9]\+\).*/\1/p' /run/mpsd/*/record.json 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
  findmnt -rno TARGET | grep -E "^($state|/var/lib/kubelet)(/|$)" | sort -r | while read -r each; do
    umount -l "$each" || true
  done
  find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2>/dev/null || true
  comm -13 <(sort netns-before) <(pod_networks | sort) | while read -r each; do ip netns delete "$each"; done
  ip link delete cni0 2>/dev/null || true
  ip address delete $api_service/32 dev lo 2>/dev/null || true
  rm -rf /var/lib/kubelet /run/mpsd $ours
  sed '/# mpsd e2e$/d' /etc/hosts >hosts && cat hosts >/etc/hosts
}

case ${3:-start} in
start) start "${4:-}" ;;
stop) stop ;;
kubelet) kubelet_is_asked_to "$4" ;;
api) api_is_asked_to "$4" ;;
import) import_image "$(cd "$OLDPWD" && realpath "$4")" ;;
*) sed -n 2,8p "$0" >&2 && exit 2 ;;
esac
