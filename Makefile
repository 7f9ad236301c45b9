# Two commands for newcomers: `make run` and `make test`. Everything they need is installed by tools/setup.sh
# from Debian and PyPI; both may be repeated at any time.
PYTHON := .venv/bin/python
PYTEST := .venv/bin/pytest
EXAMPLE ?= examples/hello.yaml

AGENT ?= pykubelet
RUNTIME ?= 1.6
FOCUS ?=
PART ?= parallel
LABELS ?=
FILES ?=
ROUNDS ?= 1000
SEED ?= 1

.PHONY: run test check fix lint bench endurance conformance node-suite hosts proto pause types docs setup dev

run: ## set up, then run the example pod in the foreground until Ctrl-C
	@tools/setup.sh run
	@.venv/bin/pykubelet up $(EXAMPLE)

test: ## set up, then every test on real parts
	@tools/setup.sh test
	@$(MAKE) --no-print-directory lint
	@$(PYTEST) -q -n 2 -m "not node and not cluster and not guest" tests
	@$(PYTEST) -m "node or cluster" tests

setup:
	@tools/setup.sh test

dev:
	@tools/setup.sh check

lint: dev
	@.venv/bin/ruff format --check --quiet . || (echo "run: make fix"; exit 1)
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy

check: lint ## quick: format, lint, types, layers, unit and scenario tests (no root needed)
	@$(PYTEST) -q -n 2 -m "not node and not cluster and not guest" tests/unit tests/scenarios tests/contracts tests/test_layers.py tests/test_house.py tests/test_host_calls.py

fix: dev ## format and mend what ruff can mend
	@.venv/bin/ruff format --quiet .
	@.venv/bin/ruff check --fix .

bench: ## measure against the bare runtime and the Go kubelet; see docs/performance.md
	@tools/setup.sh test
	@$(PYTHON) -m bench
	@$(PYTHON) -m bench.probes
	@$(PYTHON) -m bench.api_path
	@$(PYTHON) -m bench.scraping
	@$(PYTHON) -m bench.volumes
	@$(PYTHON) -m bench.streams
	@$(PYTHON) -m bench.standalone
	@$(PYTHON) -m bench.memory
	@$(PYTHON) -m bench.eviction
	@$(PYTHON) -m bench.stats_cost
	@$(PYTHON) -m bench.watches
	@$(PYTHON) -m bench.watched_pods
	@$(PYTHON) -m bench.restarts
	@$(PYTHON) -m bench.heartbeat

endurance: ## rounds of chaos after those that are noted, ROUNDS=1000 SEED=1, and churn; see docs/endurance.md
	@tools/setup.sh test
	@$(PYTHON) -m bench.endurance --continue --seed $(SEED) --rounds $(ROUNDS)
	@$(PYTHON) -m bench.churn
	@$(PYTHON) -m bench.churn_real
	@for part in endurance churn churn_real; do $(PYTHON) -m bench.$$part --table; done

conformance: ## Kubernetes' own node tests; AGENT=pykubelet|go, RUNTIME=1.6|2|crio, FOCUS=part of names; see docs/conformance.md
	@tools/setup.sh test
	@$(PYTHON) -m conformance --agent=$(AGENT) --runtime=$(RUNTIME) --focus='$(FOCUS)'

node-suite: ## Kubernetes' own tests of the kubelet; AGENT=pykubelet|go|both, PART=, FOCUS=, LABELS=; see docs/conformance.md
	@tools/setup.sh $(if $(filter guest,$(PART)),hosts,test)
	@tools/build-go.sh node-e2e >/dev/null
	@$(PYTHON) -m conformance.node_suite --agent=$(AGENT) --part=$(PART) --focus='$(FOCUS)' --labels='$(LABELS)'

hosts: ## checks on guests with systemd and cgroup v2, then a kubeadm cluster; FILES=names of check files, FOCUS=part of names
	@tools/setup.sh hosts
	@$(PYTHON) -m hosts $(FILES) --focus='$(FOCUS)'
	@$(if $(FILES)$(FOCUS),,$(PYTHON) -m hosts.kubeadm)

proto: dev ## generate the gRPC messages anew
	@$(PYTHON) tools/gen_protos.py

pause: dev ## assemble the pause program anew (needs Debian's llvm)
	@$(PYTHON) tools/build_pause.py

types: dev ## generate the Kubernetes types anew
	@$(PYTHON) tools/gen_types.py

docs: dev ## generate the settings reference, the list of causes and what was seen on guests anew
	@$(PYTHON) tools/gen_settings_doc.py
	@$(PYTHON) tools/gen_metrics_doc.py
	@$(PYTHON) -m hosts.report
	@$(PYTHON) -m conformance.skew
	@$(PYTHON) -m pykubelet.explain.document > docs/troubleshooting.md
