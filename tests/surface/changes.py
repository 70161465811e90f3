"""Where mpsd's surface is meant to differ from tests/data/surface.json, and why.

A key is `section: name`, as the failing test prints it; the last word of the name must stand in CHANGELOG.md. At a
release the list is written anew (`python -m tests.surface.made`) and this table is emptied.
"""

_CLOSED = "manifests: overlays/cert-manager-fail-closed:"
CHANGES: dict[str, str] = {
    "policy.yaml: memory_cap": "driver 615 can hold a pod's memory in the moment of an allocation",
    "doctor checks: memory-caps": "what is documented and not observed of these limits",
    "metrics: mpsd_grant_memory_capped": "which grants they hold",
    "variables of containers: CUDA_MPS_CLIENT_PRIORITY": "batch work can run below programs that serve requests",
    "crd: MPSNode/v1alpha1 .status.domains[].kind": "schedulers must know which GPUs may be joined",
    "crd: MPSNode/v1alpha1 .status.gpus[].label": "a MIG instance has no index of its own",
    "crd: MPSNode/v1alpha1 .status.gpus[].parent": "which GPU a MIG instance is a part of",
    "crd: MPSNode/v1alpha1 .status.gpus[].migProfile": "how large a MIG instance is",
    "metrics: mpsd_gpu_info": "it has the label mig_profile, empty for whole GPUs",
    "doctor checks: mig-instances": "what is documented and not observed of MIG instances",
    "commands: mpsd demo --keep": "incidents can be rehearsed on a cluster that stays up",
    "doctor checks: no-cdi": "today's runtimes differ in what they know of CDI",
    "doctor checks: cgroup-v1": "kubelet 1.35 does not start on cgroup v1",
    "doctor checks: webhook-fail-open": "with cert-manager nobody else says that Fail is missing",
    "labels, annotations and resources: mpsd.io/not-called": "why failurePolicy is Ignore",
    "labels, annotations and resources: mpsd.io/probe": "Fail only where API servers call the webhook",
    "doctor checks: policy-missing": "a policy that is not served does not hold the agent's token",
    "labels, annotations and resources: openshift.io/internal-registry-auth-token.service-account": "OpenShift",
    "doctor checks: nvidia-validator": "its CUDA program is outside MPS, and EXCLUSIVE_PROCESS refuses it",
    "doctor checks: mig-wanted": "NVIDIA's MIG manager is to change the layout of GPUs that mpsd shares",
    "doctor checks: startup-taint": "a taint that nobody removes keeps every pod away, and nothing said why",
    "labels, annotations and resources: nvidia.com/mig.config": "by which NVIDIA's MIG manager divides GPUs",
    "labels, annotations and resources: nvidia.com/mig.config.state": "how far MIG manager is with it",
    "labels, annotations and resources: mpsd.io/not-ready": "the startup taint, which the doctor looks for",
    "doctor checks: driver-upgrade": "a driver is not replaced while mpsd has it open",
    "metrics: mpsd_driver_upgrade": "an upgrade that waits stops those of other nodes, and nobody is told",
    "alerts: MPSDDriverUpgradeWaits": "the same",
    "conditions: DriverUpgrade": "why a node takes no pods meanwhile",
    "policy.yaml: driver_upgrade": "an upgrade of the driver waits for pods, or has them evicted",
    "labels, annotations and resources: mpsd.io/driver-upgrade": "mpsd's pods leave a node for a driver upgrade",
    "labels, annotations and resources: nvidia.com/gpu-driver-upgrade-state": "how far NVIDIA's operator is with it",
    "labels, annotations and resources: nvidia.com/gpu.deploy.operator-validator": "without it no upgrade ends",
    "doctor checks: nvidia-mps": "two MPS daemons cannot share one GPU",
    "labels, annotations and resources: nvidia.com/mps.capable": "starts NVIDIA's own MPS daemon",
    "labels, annotations and resources: nvidia.com/gpu.deploy.device-plugin": "keeps it away",
    "event reasons: GPUMemoryUnexplained": "memory in use of no known process is reported",
    "policy.yaml: violations.too_many_clients.action": "a grant with many processes shut its neighbours out",
    "manifests: overlays/hostile-tenants: ValidatingAdmissionPolicy mpsd-exemptions": "who may exempt",
    "manifests: overlays/hostile-tenants: ValidatingAdmissionPolicyBinding mpsd-exemptions": "who may exempt",
    "manifests: overlays/policies: ValidatingAdmissionPolicy mpsd-exemptions": "who may exempt",
    "manifests: overlays/policies: ValidatingAdmissionPolicyBinding mpsd-exemptions": "who may exempt",
    "manifests: overlays/policies-mutating: ValidatingAdmissionPolicy mpsd-exemptions": "who may exempt",
    "manifests: overlays/policies-mutating: ValidatingAdmissionPolicyBinding mpsd-exemptions": "who may exempt",
    "policy.yaml: admission.allowed_host_paths": "untrusted tenants need a list of what is allowed",
    "policy.yaml: admission.blocked_environment": "the container toolkit reads more variables; graphics is not counted",
    "policy.yaml: admission.blocked_host_paths": "more paths of the host lead to GPUs or to root",
    "variables of containers: NVIDIA_DRIVER_CAPABILITIES": "memory of graphics libraries is not counted",
    "policy.yaml: admission.claims_for_requests": "pods that request memory run where GPUs are served by claims",
    "labels, annotations and resources: mpsd.io/used-at": "templates of claims are removed a day after their last pod",
    "manifests: overlays/dra: ValidatingAdmissionPolicy mpsd-webhook-templates": "a token writes its own alone",
    "manifests: overlays/dra: ValidatingAdmissionPolicyBinding mpsd-webhook-templates": "the same",
    "labels, annotations and resources: resource.kubernetes.io/numaNode": "claims of several drivers on one NUMA node",
    "labels, annotations and resources: resource.kubernetes.io/pciBusID": "a GPU is chosen by its address",
    "policy.yaml: graces.end_drain_s": "a client killed in mid-kernel takes its neighbours along",
    "policy.yaml: pod_ends": "the commonest end is a deleted pod's",
    "policy.yaml: claim_nodes": "claims are introduced pool by pool",
    "labels, annotations and resources: mpsd.io/claims": "which nodes serve claims",
    "policy.yaml: evict_claims_when": "pods with claims may be deleted where their GPU fails",
    "policy.yaml: admission.device_classes": "pods with a resource claim are judged as those that request a GPU",
    "metrics: mpsd_gpu_unexplained_bytes": "memory in use of no known process is reported",
    **{
        f"{_CLOSED} {what} in mpsd-system": "with cert-manager the webhook may not set failurePolicy itself"
        for what in (
            *("Certificate mpsd-webhook", "Certificate mpsd-webhook-authority"),
            *("Issuer mpsd-webhook", "Issuer mpsd-webhook-self", "Role mpsd-webhook", "RoleBinding mpsd-webhook"),
        )
    },
    "commands: mpsd agent --dra": "resource claims are served where an operator asks for it",
    "commands: mpsd agent --cdi-dir": "what a claim gives reaches containers by CDI",
    "settings: MPSD_DRA": "as --dra",
    "settings: MPSD_CDI_DIR": "as --cdi-dir",
    "labels, annotations and resources: mpsd.io/content": "a slice is written again only where it has changed",
    "manifests: overlays/dra: DeviceClass mps.mpsd.io": "what claims ask for",
    "manifests: overlays/dra: DeviceClass whole-gpu.mpsd.io": "a claim for all of a GPU, without amounts",
    "manifests: overlays/dra: PodDisruptionBudget mpsd-webhook in mpsd-system": "of components/modern",
    **{
        f"manifests: overlays/dra: {kind} {name}": "claims say what mpsd reads; an agent writes its own slice"
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        for name in ("mpsd-agent-slices", "mpsd-agent-writes", "mpsd-claims")
    },
    **{
        f"crd: MPSNode/v1alpha1 .status.grants[].{field}": "a grant of a claim says so, and names all its pods"
        for field in ("claim", "claimUid", "sharedWith", "sharedWith[]", "sharedWith[].pod", "sharedWith[].uid")
    },
    "crd: MPSNode/v1alpha1 .status.grants[].violations.last.pod": "which of the pods that share a claim",
    "metrics: mpsd_grant_claim_info": "labels of other metrics keep their meaning",
    **{
        f"doctor checks: {check}": "claims wait, and nobody said why"
        for check in (
            *("claims-unsupported", "slice-missing", "slice-stale", "device-class-missing", "requests-unserved"),
            *("claims-left", "claims-unserved"),
        )
    },
    "commands: mpsd agent --startup-taint": "autoscalers wait for a node until its GPUs are served",
    "settings: MPSD_STARTUP_TAINT": "as --startup-taint",
    "manifests: overlays/startup-taint: PodDisruptionBudget mpsd-webhook in mpsd-system": "of components/modern",
    **{
        f"manifests: overlays/startup-taint: {kind} {name}": "the agent may change one taint of its own Node"
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        for name in ("mpsd-agent-taints", "mpsd-agent-writes")
    },
    **{
        f"manifests: overlays/modern: {kind} mpsd-agent-writes": "a token of the agent writes to its own node alone"
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    },
    "labels, annotations and resources: mpsd.io/gpu.product": "pods choose a node by its GPUs",
    "labels, annotations and resources: mpsd.io/gpu.memory": "the same",
    "labels, annotations and resources: mpsd.io/gpu.count": "the same",
    "labels, annotations and resources: mpsd.io/sharing": "the same",
    "labels, annotations and resources: node.kubernetes.io/instance-type": "which instances an overlay is for",
    "alerts: MPSDPodFitsNoGPU": "autoscalers add no node for such a pod",
    "policy.yaml: gpu_priority.by": "an inference server keeps its latency beside batch work",
    "policy.yaml: gpu_priority.below_normal_under": "which PriorityClasses are batch work",
    "labels, annotations and resources: mpsd.io/gpu-priority": "a pod says that its work can wait",
    "crd: MPSNode/v1alpha1 .status.grants[].priority": "whose work is below normal",
    "metrics: mpsd_grant_below_normal": "the same",
    "policy.yaml: violations.priority_raised.action": "a pod may not raise what the policy lowers",
    "event reasons: GPUPriorityRaised": "the same",
    "policy.yaml: violations.threads_lifted.action": "a program took more threads than its share, and nobody knew",
    "event reasons: GPUThreadsLifted": "the same",
    "gpus.yaml: capabilities[].sms_per_reservation": "by which they are found",
    "policy.yaml: threads": "a share of the threads can be SMs that nobody else has",
    "variables of containers: CUDA_MPS_SM_PARTITION": "the same",
    "gpus.yaml: capabilities[].sms_per_chunk": "in what steps such a share comes",
    "doctor checks: sm-partitions": "what is documented and not observed of them",
    **{
        f"crd: MPSNode/v1alpha1 .status.{field}": "schedulers count chunks of SMs, and kubectl mps shows who has them"
        for field in (
            *(f"domains[].{each}" for each in ("partitioned", "chunks", "freeChunks")),
            *(f"grants[].partitions{each}" for each in ("", "[]", "[].chunks", "[].sms")),
        )
    },
    "crd: MPSNode/v1alpha1 .status.grants[].memoryCap": "whether a memory limit of its cgroup holds a pod",
    "commands: kubectl mps autoscaling": "autoscalers add a first node only where they are told of its GPUs",
    **{
        f"commands: kubectl mps autoscaling {option}": "its options"
        for option in (
            *("NODES", "--selector", "--for", "--gpu-memory", "--count"),
            *("--output", "--kubeconfig", "--context"),
        )
    },
}
