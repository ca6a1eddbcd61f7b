# `make demo` and `make test` set up everything that they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SHARED ?= ../shared
INTEGRATION ?= $(HOME)/.cache/stillweb-integration
# One more than the cores of a small machine: a third of the time tests wait for a page or a program.
WORKERS ?= 3
# Tests wait for thousands of fsync calls, of 10 ms on a disk: their files are in memory if 4 GiB of it are free.
TEMPROOT ?= $(shell free=$$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}'); \
  if [ "$${free:-0}" -gt 4096 ]; then echo /dev/shm; else echo "$${TMPDIR:-/tmp}"; fi)

.PHONY: help setup fmt check test integration images bench follow soak demo lock docs clean

help:            ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

setup: $(VENV)/.ready  ## virtual environment, locked dependencies, browser, pywb

$(VENV)/.python: requirements/uv.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.lock
	@touch $@

$(VENV)/.ready: $(VENV)/.python requirements/dev.lock pyproject.toml src/stillweb/replay/pywb/pywb.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements/dev.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	$(BIN)/stillweb setup browser
	$(BIN)/stillweb setup pywb
	@touch $@

$(VENV)/.docs: $(VENV)/.ready requirements/docs.lock
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements/docs.lock
	@touch $@

fmt: setup       ## format the code
	$(BIN)/ruff check --fix-only --quiet src tests bench examples tools
	$(BIN)/ruff format src tests bench examples tools

check: setup $(VENV)/.docs  ## lint, types, layers, structure, prose, generated documents, site
	$(BIN)/ruff check src tests bench examples tools
	$(BIN)/ruff format --check src tests bench examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/structure.py
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/readability.py --max-share 10
	$(BIN)/python tools/api.py --check
	$(BIN)/python tools/cli_reference.py --check
	$(BIN)/python tools/connection_table.py --check
	$(BIN)/python tools/openapi_reference.py --check
	$(BIN)/python tools/benchmark_tables.py --check
	$(BIN)/python tools/benchmark_plots.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Tests start hundreds of Python programs and Playwright drivers. Without compiled files each would compile the
# package (0.4 s) or the driver (0.1 s) again.
test: export PYTHONDONTWRITEBYTECODE =
test: export NODE_COMPILE_CACHE = $(CURDIR)/$(VENV)/.node
test: setup      ## all tests; tests without their prerequisites (Docker, shared archives) are skipped with a reason
	PYTEST_DEBUG_TEMPROOT=$(TEMPROOT) $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not docker"; status=$$?; \
	  $(BIN)/pytest tests/docker && exit $$status

integration: setup  ## trainers' packages drive tasks, each in its own environment (10 GB or more, once)
	mkdir -p out/integration
	$(BIN)/python tests/integration/environments.py $(INTEGRATION)
	STILLWEB_INTEGRATION=$(INTEGRATION) $(BIN)/pytest -v tests/integration > out/integration/log.txt; \
	  status=$$?; cat out/integration/log.txt; exit $$status

images: setup    ## build all images, and record, replay and play an episode in containers
	STILLWEB_IMAGES=1 $(BIN)/pytest -v tests/docker/test_docker_browser_images.py

bench: setup     ## write ratios as JSON to out/bench; informative only
	mkdir -p out/bench
	$(BIN)/python bench/replay.py --shared $(SHARED) | tee out/bench/replay.json
	$(BIN)/python bench/browser_navigations.py --shared $(SHARED) | tee out/bench/browser_navigations.json

follow: setup    ## run the commands of the how-to guides and of the reference as printed, on a small shop
	$(BIN)/python tools/follow.py

soak: setup      ## 10,000 episodes through `stillweb serve` under 1,000 kills; takes hours
	mkdir -p out/bench
	$(BIN)/python bench/serve_chaos.py --episodes 10000 --kills 1000 | tee out/bench/soak.json

demo: setup      ## record, seal, replay, 8 episodes, compare: the whole pipeline in about a minute
	$(BIN)/stillweb demo

docs: setup $(VENV)/.docs  ## write the generated pages from the code, and build the site into out/site
	$(BIN)/python tools/api.py
	$(BIN)/python tools/cli_reference.py
	$(BIN)/python tools/connection_table.py
	$(BIN)/python tools/openapi_reference.py
	$(BIN)/python tools/benchmark_tables.py
	$(BIN)/python tools/benchmark_plots.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock:            ## update the pinned dependencies (needs uv on the PATH)
	echo uv | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --upgrade \
	  --custom-compile-command "make lock" -o requirements/uv.lock -
	uv pip compile pyproject.toml --extra record --extra serve --extra agents --group dev --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --upgrade --custom-compile-command "make lock" -o requirements/dev.lock
	uv pip compile --group pyproject.toml:docs --constraint requirements/dev.lock --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --upgrade --custom-compile-command "make lock" -o requirements/docs.lock
	uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --upgrade --custom-compile-command "make lock" -o requirements/replay.lock \
	  $(foreach package,playwright pyee greenlet pillow pixelmatch jinja2 markupsafe \
    websockets orjson fsspec pygments markdown-it-py mdurl setuptools,--no-emit-package $(package))
	uv pip compile pyproject.toml --extra serve --extra agents --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --upgrade --custom-compile-command "make lock" -o requirements/serve.lock
	uv pip compile pyproject.toml --extra record --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --upgrade --custom-compile-command "make lock" -o requirements/record.lock
	echo "pywb>=2.10,<3" | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" -o src/stillweb/replay/pywb/pywb.lock -

clean:           ## remove generated files, except collections and certs
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
