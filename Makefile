# `make demo` and `make test` are all that a fresh machine with Python 3.11, git and make needs.

PYTHON ?= python3
BIN := .venv/bin

# A command that sees no home folder, cache or token of whoever runs it.
alone = home=$$(mktemp -d) && env -u HF_HOME -u PLAYWRIGHT_BROWSERS_PATH -u XDG_CACHE_HOME -u XDG_CONFIG_HOME \
	-u XDG_DATA_HOME -u XDG_STATE_HOME HOME=$$home $(1); status=$$?; rm -rf $$home; exit $$status

.PHONY: demo test check postgres coverage trust lint fix reference docs quality real papers bench wheel clean

demo: .venv/tour
	@$(BIN)/reg demo

test: .venv/installed  ## what every change passes: five minutes on two cores
	@$(call alone,$(BIN)/pytest --tier test)

check: .venv/installed .transformers-4.57/installed .llama.cpp/installed  ## what CI runs after it: databases, buckets, Ray, browser, trainings
	@$(call alone,$(BIN)/pytest --tier check $(if $(UNTIL),--until $(UNTIL) -rs))

postgres: .venv/installed  ## the tests of registry, store and command line with every catalog in PostgreSQL
	@$(call alone,$(BIN)/pytest --catalog postgresql tests/registry tests/store tests/cli)

coverage: .venv/installed .transformers-4.57/installed .llama.cpp/installed  ## all tests with coverage
	@$(call alone,$(BIN)/pytest --cov --cov-fail-under=95)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

fix: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: .venv/installed  ## write docs/cli.md and docs/json.md from the commands
	$(BIN)/python -m cli.command_reference

docs: reference  ## write the documentation as a site; to read it: python -m http.server -d build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

quality: .venv/installed  ## measure every method on real experts; FAR=folder adds far ones
	$(BIN)/python -m benchmarks.quality $(if $(FAR),--far $(FAR))

real: .venv/installed  ## measure experts of a real model; SIZE=full takes a GPU; BASE=gemma-3-270m; ADAPTERS=folder and SKILLS=folder of your own
	$(BIN)/python -m benchmarks.real $(if $(SIZE),--size $(SIZE)) $(if $(BASE),--base $(BASE)) $(if $(ADAPTERS),--adapters $(ADAPTERS)) $(if $(SKILLS),--skills $(SKILLS))

papers: .venv/installed  ## measure tables in the shape of the papers'
	$(BIN)/python -m benchmarks.papers

trust: .venv/installed .transformers-4.57/installed .llama.cpp/installed  ## the long runs behind docs/guarantees.md; each prints one line of JSON
	@$(call alone,$(BIN)/pytest)
	@$(call alone,$(BIN)/pytest -m hypothesis --hypothesis-profile=random)
	$(BIN)/python -m tests.crash kill
	$(BIN)/python -m tests.crash random --kills 200
	$(BIN)/python -m tests.crash full --tries 8
	$(BIN)/python -m tests.crash mount --tries 8
	$(BIN)/python -m tests.machine --examples 500 --steps 30
	$(BIN)/python -m tests.concurrency --processes 8 --operations 200 --creations 20
	$(MAKE) postgres
	$(BIN)/python -m tests.crash random --kills 100 --database postgresql
	$(BIN)/python -m tests.concurrency --processes 8 --operations 100 --creations 10 --database postgresql
	$(BIN)/python -m tests.crash random --kills 100 --database postgresql --arrays s3
	$(BIN)/python -m tests.concurrency --processes 8 --operations 100 --creations 10 --database postgresql --arrays s3
	$(BIN)/python -m tests.fuzz --inputs 5000 --seed 0
	$(BIN)/python -m tests.bitflips --flips 500 --seed 0

bench: .venv/installed  ## measure every claim of speed and write benchmarks/RESULTS.md; SHARED=folder of trained experts
	$(if $(SHARED),REG_SHARED=$(SHARED) )$(BIN)/python -m benchmarks.bench

wheel: .venv/installed
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv .transformers-4.57 .llama.cpp build dist demo .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

.venv/tour: pyproject.toml constraints.txt  # what the demo and the tour of the README need
	@echo 'installing into .venv: torch and others, 1.7 GB'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[audit,parquet,train,ui]'
	@touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch .venv/tour $@

# The older transformers that composed folders have to load in as well; it runs on the torch of .venv.
.transformers-4.57/installed: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target .transformers-4.57 --upgrade 'transformers>=4.57,<4.58' 'numpy<3'
	touch $@

# llama.cpp's converters, which come with this package's source.
.llama.cpp/installed: .venv/installed
	rm -rf .llama.cpp
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest .llama.cpp llama-cpp-python==0.3.36
	tar -xzf .llama.cpp/*.tar.gz -C .llama.cpp --strip-components=3 --wildcards '*/vendor/llama.cpp/convert_*' '*/vendor/llama.cpp/conversion' '*/vendor/llama.cpp/gguf-py'
	rm .llama.cpp/*.tar.gz
	touch $@
