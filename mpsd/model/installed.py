"""What mpsd and its parts are called where it is installed in a cluster.

One rule: these are the names that manifests/ gives, and a test holds the two together.
"""

NAMESPACE = "mpsd-system"
CONTROL, AGENT, WEBHOOK, SCHEDULER = "mpsd-control", "mpsd-agent", "mpsd-webhook", "mpsd-scheduler"  # by NAME_LABEL
LIMITS = "mpsd-limits"  # the ConfigMap with both limits files
NAME_LABEL = "app.kubernetes.io/name"
LABEL, PRODUCT = "app.kubernetes.io/part-of", "mpsd"
OURS = {"labelSelector": f"{LABEL}={PRODUCT}"}  # of a list: what is mpsd's
