# What differs between versions of Kubernetes and of containerd. up.sh and with-cluster.sh source it.

# known PROGRAMS: sets version and minor, or says what is wrong with the folder.
known() {
  local program missing=()
  for program in kube-apiserver kube-scheduler kube-controller-manager kubelet; do
    [[ -x $1/$program ]] || missing+=("$program")
  done
  if ((${#missing[@]})); then
    echo "KUBE_PROGRAMS=$1: lacks ${missing[*]}; unpack Kubernetes' kubernetes-server-linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/').tar.gz and name its server/bin" >&2
    return 1
  fi
  if ! version=$("$1/kubelet" --version 2>/dev/null); then
    echo "KUBE_PROGRAMS=$1: kubelet does not run here; take the programs for $(uname -m)" >&2
    return 1
  fi
  version=${version##* v}
  minor=${version#1.}
  minor=${minor%%.*}
  [[ $minor == [0-9]* ]] || minor=0
  if ((minor != 20 && (minor < 31 || minor > 36))); then
    echo "KUBE_PROGRAMS=$1: Kubernetes $version is not among those that tests/e2e/kube/versions.sh knows: 1.20, 1.31 to 1.36" >&2
    return 1
  fi
}

# of_kubernetes: the options of its programs. extender_scheduler: the one that asks extenders about preemption.
of_kubernetes() {
  if ((minor == 20)); then
    no_http=(--port 0)
    extender_scheduler=kube-scheduler-preempting
    kubelet_options=(--container-runtime=remote --container-runtime-endpoint "unix://$state/containerd.sock"
      --feature-gates LocalStorageCapacityIsolation=false)
    kubelet_fields=()
  else
    no_http=()
    extender_scheduler=kube-scheduler
    kubelet_options=()
    kubelet_fields=("containerRuntimeEndpoint: unix://$state/containerd.sock" "localStorageCapacityIsolation: false"
      "failCgroupV1: false")
  fi
}

# of_containerd SNAPSHOTTER: its configuration. CDI from 1.7 on; no NRI, whose socket would be the machine's.
of_containerd() {
  local major minor cri=io.containerd.grpc.v1.cri
  IFS=. read -r major minor _ < <(containerd --version | sed 's/^[^ ]* [^ ]* v\?//')
  cat <<-TOML
	version = $((major >= 2 ? 3 : 2))
	root = "$state/containerd/root"
	state = "$state/containerd/state"
	[grpc]
	  address = "$state/containerd.sock"
	[plugins."io.containerd.nri.v1.nri"]
	  disable = true
	TOML
  if ((major >= 2)); then
    cat <<-TOML
	[plugins."io.containerd.cri.v1.images"]
	  snapshotter = "$1"
	  [plugins."io.containerd.cri.v1.images".pinned_images]
	    sandbox = "docker.io/local/busybox:1"
	[plugins."io.containerd.cri.v1.runtime"]
	  restrict_oom_score_adj = true
	  enable_cdi = true
	  cdi_spec_dirs = ["$state/cdi"]
	  [plugins."io.containerd.cri.v1.runtime".containerd]
	    default_runtime_name = "runc"
	    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
	      runtime_type = "io.containerd.runc.v2"
	  [plugins."io.containerd.cri.v1.runtime".cni]
	    bin_dirs = ["/usr/lib/cni"]
	    conf_dir = "$state/cni"
	TOML
    return
  fi
  cat <<-TOML
	[plugins."$cri"]
	  sandbox_image = "docker.io/local/busybox:1"
	  restrict_oom_score_adj = true
	  $( ((minor < 7)) || printf 'enable_cdi = true\n  cdi_spec_dirs = ["%s/cdi"]' "$state")
	  [plugins."$cri".containerd]
	    snapshotter = "$1"
	  [plugins."$cri".cni]
	    bin_dir = "/usr/lib/cni"
	    conf_dir = "$state/cni"
	TOML
}

# What runs: one line for people and for the record of a run.
versions() {
  local cgroup=v1
  [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]] || cgroup=v2
  echo "Kubernetes $version, $(containerd --version | awk '{print "containerd " $3}'), $(runc --version | head -1 | sed 's/ version//'), cgroup $cgroup"
}
