PYTHON ?= python3
ARGS ?=
MINUTES ?= 10
BIN := .venv/bin
UV := .cache/uv/bin/uv
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

IMAGES ?= cpu gpu
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BUILDER ?= $(firstword $(foreach name,docker podman buildah,$(if $(shell command -v $(name)),$(name))))
# Only Docker's format has health checks, and buildah keeps layers only with --layers.
OF_podman = --format docker
OF_buildah = --format docker --layers
builder = $(or $(BUILDER),$(error docker, podman and buildah are all missing: install one of them$(1)))
image = $(call builder) \
	build $(OF_$(notdir $(BUILDER))) --file docker/$(1).Dockerfile \
	--tag docker.io/antefix/antefix-$(1):$(VERSION) --build-arg VERSION=$(VERSION) \
	--build-arg REVISION=$(shell git rev-parse HEAD) $(if $(BASE),--build-arg BASE=$(BASE)) $(ARGS) .
# Archives are OCI archives; those of docker are since version 25. Only docker's keep the health check.
SAVE_docker = save --output $(2) $(1)
SAVE_podman = save --format oci-archive --output $(2) $(1)
SAVE_buildah = push --quiet $(1) oci-archive:$(2):$(1)
saved = $(BUILDER) $(or $(SAVE_$(notdir $(BUILDER))),$(SAVE_docker))
# The check runs inside the image: buildah runs containers, the others run images.
GPU_IMAGE = docker.io/antefix/antefix-gpu:$(VERSION)
CHECK = --volume $(CURDIR)/tests/in_gpu_image:/check/tests/in_gpu_image:ro --env PYTHONPATH=/check $(ARGS)
IN_IMAGE = python -m tests.in_gpu_image.check

# uv does not compile: without .pyc files each process of an engine compiles vLLM for ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
BENCHES = bench-adapters bench-overhead bench-large-bodies bench-index bench-routing bench-backtest \
	bench-overload bench-simulator bench-spike bench-weights \
	bench-budgets bench-canary bench-kinds bench-planned bench-prediction bench-fairness bench-isolation bench-startup \
	bench-grammars bench-resume bench-long-prompts bench-client bench-scale bench-peers bench-tiers \
	bench-summary
MEASUREMENTS = $(BENCHES) soak drills drill-hangs
.PHONY: help up down test test-rest test-all test-cluster fuzz lint format lock audit docs docs-serve reference observability manifests \
	chart chart-package wheel release release-images image-cpu image-gpu check-image-gpu installed $(MEASUREMENTS) clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## Install the requirements, then start a fleet on this machine (ARGS= goes to `antefix up`)
	@$(PYTHON) bootstrap.py
	@$(BIN)/antefix up $(ARGS)

down: ## Stop the fleet that `make up` started
	@if [ -x $(BIN)/antefix ]; then $(BIN)/antefix down $(ARGS); fi

test: ## Lint, then run every quick test and a few on real engines (ARGS= goes to pytest)
	@$(PYTHON) tests/programs.py
	@$(PYTHON) bootstrap.py --dev
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests.run test
else
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest $(ARGS)
endif

test-rest: ## Run every test that `make test` leaves out
	@$(PYTHON) tests/programs.py
	@$(PYTHON) bootstrap.py --dev
	@$(BIN)/python -m tests.run rest

test-all: test ## Lint, and run every test except those of `make test-cluster`
	@$(MAKE) --no-print-directory test-rest

test-cluster: ## Test releases on the Kubernetes of KUBECONFIG, given with ANTEFIX_TEST_CLUSTER=yes
	@$(PYTHON) bootstrap.py --dev
	@$(BIN)/python -m pytest -m kubernetes_long -s tests/kubernetes_long $(ARGS)

fuzz: ## Run property tests on random inputs, then wrong requests on a fleet for MINUTES=10 (ARGS=)
	@$(PYTHON) bootstrap.py --dev
	@$(BIN)/python -m pytest -m "hypothesis and not real" --hypothesis-profile=fuzz --timeout=3600 \
		-n 2 --dist loadfile $(ARGS)
ifeq ($(strip $(ARGS)),)
	@ANTEFIX_FUZZ_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m real --hypothesis-profile=fuzz \
		tests/real/test_requests_that_are_wrong.py
endif

PROSE := $(wildcard tests/test_prose*.py)
lint: ## Check style, format, types and prose
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q -q --durations=1 --durations-min=60 $(PROSE)

format: ## Format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

FLEET_IN = requirements/operator.in requirements/base.in
lock: ## Resolve requirements/*.in again, and keep every pin that still fits
	@$(PYTHON) bootstrap.py --uv
	$(COMPILE) requirements/uv.in -o requirements/uv.lock
	$(COMPILE) --override requirements/overrides.txt $(FLEET_IN) requirements/cpu.in \
		-o requirements/cpu.lock
	$(COMPILE) --override requirements/overrides.txt -c requirements/cpu.lock \
		$(FLEET_IN) requirements/cpu.in requirements/dev.in -o requirements/dev.lock
	$(COMPILE) --override requirements/gpu-overrides.txt $(FLEET_IN) requirements/gpu.in \
		-o requirements/gpu.lock
	$(COMPILE) requirements/interpreter.in -o requirements/interpreter.lock
	@sed -n '/^\(accelerate\|compressed-tensors\)==/d; s/^\([a-z0-9.-]*==.*\) \\$$/\1/p' \
		requirements/cpu.lock > .cache/in-both.txt
	$(COMPILE) --override requirements/overrides.txt --override requirements/quantize-overrides.txt \
		-c .cache/in-both.txt $$(sed 's/==.*//; s/^/--no-emit-package /' .cache/in-both.txt) \
		requirements/quantize.in -o requirements/quantize.lock

audit: ## Check every pinned package against PyPI's advisories (requires internet access)
	@$(PYTHON) bootstrap.py --uv
	@for lock in cpu gpu quantize interpreter dev uv; do echo "$$lock.lock:" && \
		$(UV) tool run --quiet --from pip-audit==2.10.1 pip-audit --strict --disable-pip --require-hashes \
		--requirement requirements/$$lock.lock || exit 1; done

docs: ## Build the documentation site into .cache/site; a dead link fails
	@$(PYTHON) bootstrap.py --dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: ## Serve the documentation site at http://127.0.0.1:8001, and rebuild it on changes
	@$(PYTHON) bootstrap.py --dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

reference: ## Write the reference pages and the layout in docs/architecture.md, and the project's addresses
	@$(BIN)/antefix config reference > docs/fleet-file.md.new
	@mv docs/fleet-file.md.new docs/fleet-file.md
	@$(BIN)/python -m observability.metrics.catalogue > docs/metrics.md.new
	@mv docs/metrics.md.new docs/metrics.md
	@$(BIN)/antefix config schema > fleets/fleet.schema.json.new
	@mv fleets/fleet.schema.json.new fleets/fleet.schema.json
	@$(BIN)/python -m cli.reference > docs/cli.md.new
	@mv docs/cli.md.new docs/cli.md
	@$(BIN)/python -m deployments.gateway.reference.api_reference > docs/api.md.new
	@mv docs/api.md.new docs/api.md
	@$(BIN)/python -m tests.house
	@$(BIN)/python -m tests.project

observability: ## Write rules, alerts, runbooks and dashboards from observability/slo.yaml
	@$(BIN)/antefix slo render --output-dir helm/antefix/files --runbooks docs/runbooks

RENDERED = build/manifests
manifests: ## Render the chart's values files into build/manifests (ARGS="--set image.registry=...")
	@mkdir -p $(RENDERED)
	@for values in helm/antefix/values/*.yaml; do \
		helm template antefix helm/antefix --namespace antefix --no-hooks --values $$values \
			--set auth.generate=false,auth.existingSecret=llm-auth,redis.existingSecret=llm-redis \
			$(ARGS) > $(RENDERED)/$${values##*/} || exit 1; done

chart: observability ## Write the chart's schema, README and generated files, then lint it
	@$(BIN)/python -m k8s.chart.chart_schema
	@$(BIN)/python -m k8s.chart.chart_readme
	@$(BIN)/python -m pytest -q tests/helm/test_kinds.py -k lints

chart-package: chart ## Pack the chart into build/, ready for `helm push` to an OCI registry
	@helm package helm/antefix --destination build

wheel: ## Build the Python package into build/
	@$(PYTHON) bootstrap.py --uv
	@rm -rf build/lib build/bdist.*
	@$(UV) build --quiet --wheel --out-dir build

RELEASE = build/release
WITHOUT_IMAGES = , or run "make release IMAGES=", which leaves out the images
release: ## Build the files of a release into build/release (IMAGES= leaves out both images)
	@$(if $(IMAGES),: $(call builder,$(WITHOUT_IMAGES)))
	@$(PYTHON) bootstrap.py --dev
	@$(BIN)/python release.py check
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	@$(MAKE) --no-print-directory chart-package wheel release-images
	@cp build/antefix-$(VERSION).tgz build/antefix-$(VERSION)-*.whl $(RELEASE)
	@$(BIN)/python release.py $(RELEASE)

release-images:
	@for image in $(IMAGES); do \
		$(MAKE) --no-print-directory image-$$image && \
		$(call saved,docker.io/antefix/antefix-$$image:$(VERSION),$(RELEASE)/antefix-$(VERSION)-$$image.oci.tar) || { \
		echo "Error: $(BUILDER) did not build and save the $$image image; its output above shows why." \
			'Name another tool with BUILDER= or another base image with BASE=$(WITHOUT_IMAGES).' >&2; exit 1; }; done

image-cpu: ## Build the image of pods without GPUs (BASE= another base; ARGS= goes to the builder)
	@$(call image,cpu)

image-gpu: ## Build the image of engines on GPUs (BASE= another base; ARGS= goes to the builder)
	@$(call image,gpu)

check-image-gpu: ## Check the GPU image from inside, without a GPU (ARGS= goes to the builder)
ifeq ($(notdir $(BUILDER)),buildah)
	@container=$$(buildah from --pull=never $(GPU_IMAGE)) && \
	{ buildah run $(CHECK) "$$container" -- $(IN_IMAGE); failed=$$?; buildah rm "$$container" > /dev/null; exit $$failed; }
else
	@$(BUILDER) run --rm $(CHECK) $(GPU_IMAGE) $(IN_IMAGE)
endif

installed:
	@$(PYTHON) bootstrap.py

$(MEASUREMENTS): installed

bench-large-bodies: ## Send small requests next to another tenant's bodies of 4 MB, five minutes
	@$(BIN)/python -m benchmarks.overhead.large_bodies $(ARGS)

bench-overhead: ## Measure the latency that Antefix adds to a request
	@$(BIN)/python -m benchmarks.overhead.run $(ARGS)

bench-index: ## Measure lookups in the prefix index, and its publisher
	@$(BIN)/python -m benchmarks.index.run $(ARGS)

bench-long-prompts: ## Measure the cost of prompts of up to 100,000 tokens in a gateway
	@$(BIN)/python -m benchmarks.long_prompts.run $(ARGS)

bench-prediction: ## Measure the accuracy of predicted times to first token, on real engines
	@$(BIN)/python -m benchmarks.prediction.run $(ARGS)

bench-fairness: ## Measure the effect of one tenant's flood on another tenant, on real engines
	@$(BIN)/python -m benchmarks.fairness.run $(ARGS)

bench-routing: ## Measure the routing policies on real engines
	@$(BIN)/python -m benchmarks.routing.run $(ARGS)

bench-scale: ## Play 8 to 1,000 simulated replicas over a real Redis (ARGS="--sizes 8 1000")
	@$(BIN)/python -m benchmarks.scale.run $(ARGS)

bench-backtest: ## Play traces under Antefix's autoscaler, Ray Serve's, HPA and KEDA, on simulated engines
	@$(BIN)/python -m benchmarks.backtest.run $(ARGS)

bench-startup: ## Play traces with replicas that take 5, 30 and 120 s to start, on simulated engines
	@$(BIN)/python -m benchmarks.backtest.startup $(ARGS)

bench-overload: ## Measure a fleet under three times the load that it can serve
	@$(BIN)/python -m benchmarks.overload.run $(ARGS)

bench-simulator: ## Compare the backtest's simulator with the fleet that it models
	@$(BIN)/python -m benchmarks.validation.run $(ARGS)

bench-spike: ## Measure a load spike with and without a warm replica
	@$(BIN)/python -m benchmarks.spike.run $(ARGS)

bench-weights: ## Quantize the embedded model, measure its quality, and try speculation (ARGS=)
	@$(BIN)/python -m benchmarks.weights.run $(ARGS)

bench-planned: ## Compare the plan with this machine's GPU, five minutes (ARGS="--model MODEL")
	@$(BIN)/python -m benchmarks.planned.run $(ARGS)

bench-budgets: ## Measure tenants' budgets while gateways and Redis are killed, twelve minutes
	@$(BIN)/python -m benchmarks.budgets.run $(ARGS)

bench-adapters: ## Serve 200 LoRA adapters on two engines with room for four each, 25 minutes
	@$(BIN)/python -m benchmarks.adapters.run $(ARGS)

bench-tiers: ## Compare loaded with computed prefixes, on real engines (ARGS="--parts returning cost")
	@$(BIN)/python -m benchmarks.tiers.run $(ARGS)

bench-canary: ## Play worse and equal canaries and split conversations, two minutes
	@$(BIN)/python -m benchmarks.canary.run $(ARGS)

bench-kinds: ## Play traces on pools of two kinds of accelerators, five minutes
	@$(BIN)/python -m benchmarks.kinds.run $(ARGS)

bench-isolation: ## Attack a tenant's prompts by timing, with and without the salt between tenants
	@$(BIN)/python -m benchmarks.isolation.run $(ARGS)

bench-grammars: ## Attack an engine with grammars and measure another tenant, five minutes
	@$(BIN)/python -m benchmarks.grammars.run $(ARGS)

bench-resume: ## Kill engines in mid-answer and compare the answers, an hour (ARGS="--answers 24 -e 2")
	@$(BIN)/python -m benchmarks.resume.run $(ARGS)

bench-client: ## Compare measurements of antefix bench and vllm bench serve, on one server
	@$(BIN)/python -m benchmarks.client.run $(ARGS)

bench-peers: ## Compare with other routers, on the same engines (ARGS="--routers antefix smg --seeds 1")
	@$(BIN)/python -m benchmarks.peers.run $(ARGS)

bench-summary: ## Write docs/benchmarks/README.md from the output of benchmarks (ARGS="FILE ...")
	@$(BIN)/python -m benchmarks.summary $(ARGS)

soak: ## Watch a fleet under mixed traffic for growing resources (ARGS="--minutes 60")
	@$(BIN)/python -m benchmarks.soak.run $(ARGS)

drills: ## Break a fleet's parts under traffic, and report the effects (only=NAME for one)
	@$(BIN)/python -m benchmarks.drills.run $(if $(only),--only $(only)) $(ARGS)

drill-hangs: ## Freeze real engines at 100 random moments, half a minute each (moments=100 ARGS="--starved-minutes 60")
	@$(BIN)/python -m benchmarks.drills.hangs --moments $(or $(moments),100) $(ARGS)

clean: ## Remove installed and cached files of this repository
	@rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
