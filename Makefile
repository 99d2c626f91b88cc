# Podwire's commands. Each of demo, test, lint, bench first runs setup, which costs nothing when all is there.
# Root is needed for what makes network namespaces (demo, bench, the kernel tests) and for missing packages.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.podwire-setup
SHIM := src/podwire/shim/$(shell uname -m)/podwire-shim

# command or file that proves a package is there : Debian package
NEEDS := \
	/usr/share/doc/libnftables1:libnftables1 \
	nft:nftables \
	ip:iproute2 \
	conntrack:conntrack \
	busybox:busybox-static \
	iptables:iptables \
	/usr/lib/cni/bridge:containernetworking-plugins

# Real runtimes run pods with the plugins: containerd by its CRI socket and `ctr --cni`, podman by its CNI
# backend. dhcp leases come from dnsmasq too. Others look at processes.
test: NEEDS += ctr:containerd runc:runc podman:podman ps:procps dnsmasq:dnsmasq-base

# The shim is compiled, as it is shipped and with sanitizers, and called.
test test-kernel-all bench fuzz soak shim: NEEDS += gcc:gcc musl-gcc:musl-tools /usr/include/stdio.h:libc6-dev

.PHONY: help setup shim wheel demo test test-kernel test-kernel-all lint bench soak fuzz format lock clean packages

help:
	@echo 'make demo    run examples/hello on this machine, check every claim, take it down (root)'
	@echo 'make test    all tests (root: the kernel tests too)'
	@echo 'make test-kernel   what this kernel may lack (vlan, ipvlan, dummy, vrf, bridge VLANs), in user-mode Linux (root); TEST_KERNEL_SECONDS (290)'
	@echo 'make test-kernel-all   all conformance checks of vlan, ipvlan, dummy, vrf and chains with them, there; RUNS (all), TEST_KERNEL_SECONDS a run (3600)'
	@echo 'make lint    format, lint, types, layers'
	@echo 'make bench   speed beside the Go plugins and the bare netlink floor (root)'
	@echo 'make fuzz    look for inputs that break the parsers, FUZZ_SECONDS (60) long'
	@echo 'make soak    nodes killed at random while pods come and go, SOAK_MINUTES (5) long; then the agent, in 1,000 ADDs (root)'
	@echo 'make shim    compile the shim for this machine'
	@echo 'make wheel   a wheel in dist/ with the shim for each architecture, checked'
	@echo 'make setup   install what is missing: Debian packages, .venv, the podwire command'
	@echo 'make lock    resolve requirements.lock again from pyproject.toml'

setup: packages $(STAMP)

packages:
	@missing=(); \
	for need in $(NEEDS); do \
		proof=$${need%%:*}; package=$${need##*:}; \
		if [[ $$proof == /* ]]; then [ -e "$$proof" ] || missing+=("$$package"); \
		else command -v "$$proof" >/dev/null || [ -x "/usr/sbin/$$proof" ] || missing+=("$$package"); fi; \
	done; \
	command -v $(PYTHON) >/dev/null || missing+=(python3 python3-venv); \
	[ -d $(VENV) ] || ! command -v $(PYTHON) >/dev/null || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); \
	if [ $${#missing[@]} -gt 0 ]; then \
		if [ "$$(id -u)" != 0 ]; then \
			echo "setup: missing Debian packages: $${missing[*]} (as root: apt-get install $${missing[*]})" >&2; exit 1; \
		fi; \
		echo "setup: installing $${missing[*]}"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			"$${missing[@]}" >/dev/null; \
	fi

$(STAMP): requirements.lock pyproject.toml | packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "setup: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=" >&2; exit 1; }
	@echo "setup: making $(VENV)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(SHIM): $(wildcard shim/*.[ch]) shim/build.py | packages
	@$(PYTHON) shim/build.py

shim: packages $(SHIM)

# ziglang, which the build fetches into an environment of its own, compiles for both architectures.
wheel: setup
	@rm -f dist/podwire-*.whl
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .
	@$(BIN)/python -m tests.shim.wheel dist

demo: setup
	@$(BIN)/python examples/demo.py

test: setup shim
	@$(BIN)/pytest -n 2 --dist worksteal $(TESTS)

test-kernel: setup
	@PYTHONPATH=src $(BIN)/python -m tests.uml $(TESTS)

test-kernel-all: setup shim
	@PYTHONPATH=src $(BIN)/python -m tests.uml.everything $(RUNS)

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup shim
	@$(BIN)/python -m bench

soak: setup shim
	@PYTHONPATH=src $(BIN)/python -m tests.e2e.soak --minutes $(or $(SOAK_MINUTES),5)
	@PYTHONPATH=src $(BIN)/python -m tests.e2e.agent_soak --pairs $(or $(SOAK_PAIRS),1000) --shim $(SHIM)
	@PYTHONPATH=src $(BIN)/python -m tests.kube.informer_soak --kills $(or $(SOAK_KILLS),30)

fuzz: setup
	@FUZZ_SECONDS=$(or $(FUZZ_SECONDS),60) PYTHONPATH=src $(BIN)/python -m tests.fuzz
	@PYTHONPATH=src $(BIN)/python -m tests.cni.fuzz_long 2000

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: setup
	@$(BIN)/python -m pip install -q --disable-pip-version-check pip-tools
	@$(BIN)/pip-compile -q --generate-hashes --strip-extras --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --no-header --extra dev -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist src/podwire/shim .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .fuzz .kernel
