# Everything a fresh machine with git, make and Python 3.11 needs. `.ci/run` says what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WHOLE := tests/whole
SOAK := $(WHOLE)/node/test_soak.py $(WHOLE)/machine/test_random_faults.py
CONTRACT := tests/contract
HOST := tests/host
SEE := tests/prometheus tests/page
# Most of the time they wait for something to happen. Compiled once, not anew by each of the programs they start.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 4 --dist loadfile

.PHONY: check lint units check-node check-host check-see e2e e2e-modern e2e-gpu demo bench proto lock examples fuzz soak docs docs-site release format clean
.DEFAULT_GOAL := check

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

check: $(READY)
	$(MAKE) --no-print-directory --jobs --output-sync=target lint units

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mpsd check limits

units: $(READY)
	$(TESTS) $(patsubst %,--ignore=%,$(WHOLE) $(CONTRACT) $(HOST) $(SEE))

# Every role as it runs, on whole simulated machines, nodes and clusters; what GPUs do, on simulated ones; mpsd bench; and
# what takes longest of the rest. Files come in the order of tests/whole/conftest.py.
check-node: $(READY)
	$(TESTS) --no-loadscope-reorder $(WHOLE) $(CONTRACT) $(SOAK:%=--ignore=%)

# Containers without Kubernetes, by Debian's runc, containerd, dockerd and podman: as root. What of them is not there is
# fetched and unpacked where Debian's apt is; else its tests are skipped, and say so.
check-host: $(READY)
	PATH="$$PATH:$$($(HOST)/programs.sh)" PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist loadfile -rs $(HOST)

# What an operator looks at: by Debian's Prometheus and Chromium, fetched and unpacked as above.
check-see: $(READY)
	PATH="$$PATH:$$(tests/prometheus/programs.sh)" PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist loadfile -rs $(SEE)

# A real Kubernetes 1.20.2 of its own with a real node, on Debian 12 as root, with the image built from this checkout:
# about 20 minutes on two shared cores. RECORD=tests/e2e/records keeps what it ran on and how it ended, for `make docs`.
RECORD ?=
E2E := pytest -s --durations=12 --kubeconfig "$$KUBECONFIG" $(RECORD:%=--record %)
KUBE := PATH="$(CURDIR)/$(BIN):$$PATH" tests/e2e/kube/with-cluster.sh
ALL_E2E := --first '$(E2E) tests/kube_contract tests/e2e/admission tests/e2e/chart' \
  sh -c '$(E2E) tests/e2e/node tests/e2e/scheduler'
e2e: $(READY)
	unset KUBE_PROGRAMS CONTAINERD; $(KUBE) $(ALL_E2E)

# The same on the Kubernetes whose programs lie in KUBE_PROGRAMS=FOLDER, 1.31 to 1.36, with containerd 2 and then pods
# alone with 1.7, both fetched from Debian and only unpacked; or with the one in CONTAINERD=FOLDER. The programs:
# server/bin of https://dl.k8s.io/v1.36.2/kubernetes-server-linux-amd64.tar.gz
KUBE_PROGRAMS ?= $(HOME)/.cache/kube-1.36.2
MODERN = KUBE_PROGRAMS="$(KUBE_PROGRAMS)" CONTAINERD
e2e-modern: $(READY)
	$(MODERN)="$(or $(CONTAINERD),sid)" $(KUBE) $(ALL_E2E)
	$(if $(CONTAINERD),,$(MODERN)=trixie $(KUBE) sh -c '$(E2E) tests/e2e/node/test_shares.py')

# The same on a real GPU, as root on a machine with one: tests/e2e_gpu/README.md. GPU_RECORD=FILE keeps what it saw.
GPU_RECORD ?=
e2e-gpu: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -s -v --durations=12 $(GPU_RECORD:%=--record %) tests/e2e_gpu

demo: $(READY)
	$(BIN)/mpsd demo

# BENCH names the groups to measure, and none means all. AGAINST=FILE compares with the build/bench.json of another run,
# AGAINST=last with the last record in docs/benchmarks.
AGAINST ?=
bench: $(READY)
	$(BIN)/python -m tests.bench $(AGAINST:%=--against %) $(BENCH)

# Made with the last grpcio-tools whose output asks for no particular runtime: later ones refuse older protobufs.
PROTOC := build/protoc-1.62.3
proto: $(PROTOC)
	$(PROTOC)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. mpsd/kubelet/api/*.proto

$(PROTOC):
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check --only-binary :all: grpcio-tools==1.62.3

# What the image is made of, with hashes, for every Python and machine that has wheels: the newest that pyproject.toml takes.
UV := build/uv-0.13.9
LOCK = $(UV)/bin/uv pip compile --quiet --no-config --upgrade --generate-hashes --universal --python-version 3.11 \
	--only-binary :all: --custom-compile-command 'make lock'
lock: $(UV)
	$(LOCK) --extra agent --extra scheduler --extra webhook pyproject.toml --output-file images/requirements.lock
	sed -n 's/^requires = \["\(hatchling.*\)"\]$$/\1/p' pyproject.toml | $(LOCK) - --output-file images/build.lock

$(UV):
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet --disable-pip-version-check --only-binary :all: uv==0.13.9

# FUZZ_S seconds a target; FUZZ names the targets, and none means all. What breaks one is kept in build/fuzz.
# The control socket, the ports and hostile processes are fuzzed by a seed that is printed; FUZZ_SEED repeats one.
FUZZ_S ?= 60
fuzz: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz $(FUZZ_S) $(FUZZ)
	$(if $(FUZZ),,$(BIN)/python -m tests.fuzz.control_socket $(FUZZ_S) $(FUZZ_SEED))
	$(if $(FUZZ),,$(BIN)/python -m tests.fuzz.ports $(FUZZ_S) $(FUZZ_SEED))
	$(if $(FUZZ),,$(BIN)/python -m tests.fuzz.hostile_processes $(FUZZ_S) $(FUZZ_SEED))

# Every claim of what parses or decides by this many new random examples; `make check` tries the same ones each time.
# What breaks a claim is printed, as a line to keep with it.
EXAMPLES ?= 2000
examples: $(READY)
	MPSD_EXAMPLES=$(EXAMPLES) $(TESTS) -m hypothesis --timeout=0 \
		$(patsubst %,--ignore=%,$(filter-out %/manifests %/simulator,$(wildcard $(WHOLE)/*)) $(HOST) $(SEE))

# MPSD_SOAK steps of mishaps in all, from the seed MPSD_SOAK_SEED on, which a failure names.
MPSD_SOAK ?= 1000
MPSD_SOAK_SEED ?= $(shell date +%s)
soak: $(READY)
	@echo "seed: $(MPSD_SOAK_SEED)"
	MPSD_SOAK=$(MPSD_SOAK) MPSD_SOAK_SEED=$(MPSD_SOAK_SEED) \
		$(BIN)/pytest $(SOAK) --durations=0 -v

# The tables of docs/ that are printed from code; `make check` says when one is out of date.
docs: $(READY)
	$(BIN)/python -m tests.docs.printed

# build/site: docs/ as pages with search. A warning, such as a page that the navigation lacks, ends it.
docs-site: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# dist/: wheel, sdist, chart, image, SBOM and checksums of what is committed. As root; BASE=IMAGE@DIGEST is the image's base,
# and none means one made of Debian's packages.
release: $(READY)
	$(BIN)/python images/release.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist
