# Everything a checkout needs is Python 3.11+ and make: the targets build their own environments
# (.venv, and .venv-* for SDKs that cannot share one) from hash-pinned files and reuse them until those change.
# With npm the tests also reach the reference servers and clients from npm, which are pinned likewise, with the Node.js
# that they run on.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 4
SECONDS_EACH ?= 60
EXAMPLES ?= 50
SOAK_SCALE ?= 1
REV ?= HEAD~1

VENV := .venv
MCP1 := .venv-mcp1
A2A10 := .venv-a2a10
A2A03 := .venv-a2a03
VAULT := .venv-agentvault
FRAMEWORKS := .venv-frameworks
FUZZ := .venv-fuzz
AUDIT := .venv-audit
DOCS := .venv-docs
TOKENS := .venv-tokens
SDKS := $(MCP1)/.ready $(A2A10)/.ready $(A2A03)/.ready $(VAULT)/.ready $(FRAMEWORKS)/.ready
NPM := tests/peers/npm
SUITE := tests/conformance/npm
LIBRARIES := tests/console/vendor
CONSOLE := src/isthmus/frontends/console/static
# Facts about pinned SDKs, with no hub between them: they change only when the pins do.
PEERS := tests/peers/test_peers.py tests/peers/test_full.py
# A test that hangs where its own timeout cannot reach it ends its worker, with the stack of each thread.
HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-input
# The extras of pyproject.toml that bring an agent framework.
EXTRAS := adk langchain openai-agents pydantic-ai
# Prints the packages that pyproject.toml names, without those of the extras given: the frameworks have their own environment.
DIRECT := import re, sys, tomllib; \
project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = [own for name, own in project["optional-dependencies"].items() if name not in sys.argv]; \
print(*(re.match(r"[\w-]+", each)[0] for each in sum(extras, project["dependencies"])))
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-emit-index-url --no-header

.DEFAULT_GOAL := help
.PHONY: help code beside scripts docs recording reference serve demo devices cluster firsthour test newest peers affinity conformance soak cover lint format bench bench-peers compare bus crossing alone workers links simulate crowdkill nodekill partitions agents crowd relayed library trust telemetry lists search tokens jobs console screenshots fuzz gate resolve audit image sbom vendor lock clean

help: ## say what each target does
	@echo "make TARGET [ARGS='…'] [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 15

serve: $(VENV)/.serve ## run the hub; ARGS="--config mcp.json --port 8765"
	@exec $(VENV)/bin/isthmus serve $(ARGS)

demo: $(VENV)/.serve ## play the examples with A2A agents, from the card to a hub that is killed
	@$(VENV)/bin/python examples/a2a/demo.py

devices: $(VENV)/.serve ## play the relay: three servers behind NAT, and a device
	@$(VENV)/bin/python examples/relay/demo.py

cluster: $(VENV)/.test $(VENV)/.postgres ## run three hubs, NATS, PostgreSQL and a load balancer on this machine until Ctrl-C; ARGS="--port 9000"
	@exec $(VENV)/bin/python examples/cluster.py $(ARGS)

firsthour: $(VENV)/.test $(A2A10)/.ready $(FRAMEWORKS)/.ready ## play the first hour of five new users in a clean clone, with real clients; ARGS="developer operator" for some
	@$(VENV)/bin/python -m tests.first_hour $(ARGS)

test: $(VENV)/.test $(VENV)/.postgres $(VENV)/.prometheus $(VENV)/.chromium $(VENV)/.shells $(VENV)/.nginx $(VENV)/.iproute $(SDKS) $(NPM)/node_modules/.ready ## run the tests; ARGS="-k names"
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(HANGS) $(PEERS:%=--ignore=%) $(ARGS)

newest: $(VENV)/.test $(VENV)/.postgres $(VENV)/.prometheus $(VENV)/.chromium $(VENV)/.shells $(VENV)/.nginx $(VENV)/.iproute $(SDKS) $(NPM)/node_modules/.ready ## run the tests with the newest release of every dependency, whatever the caps say; leaves .venv unpinned (make clean)
	$(VENV)/bin/python $(PIP_INSTALL) --upgrade $$($(VENV)/bin/python -c '$(DIRECT)' $(EXTRAS))
	$(VENV)/bin/python -m pip list --disable-pip-version-check
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(HANGS) $(PEERS:%=--ignore=%) --deselect tests/supply $(ARGS)

peers: $(VENV)/.test $(SDKS) $(NPM)/node_modules/.ready ## run the official clients against the official servers, without the hub
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup $(PEERS) $(ARGS)

affinity: $(VENV)/.test $(VENV)/.postgres $(SDKS) $(NPM)/node_modules/.ready ## run the tests of frontends with each hub as three nodes, and each request sent to a random one (about 40 minutes); docs/conformance.md has what fails
	TEST_NODES=3 $(VENV)/bin/python -m pytest -n 2 --dist loadgroup --timeout 120 --tb=native tests/matrix tests/frontends tests/agents tests/relay $(ARGS)

conformance: $(VENV)/.test $(SUITE)/node_modules/.ready ## run the protocol's conformance suite against the hub
	$(VENV)/bin/python -m tests.conformance.run $(ARGS)

soak: $(VENV)/.test $(VENV)/.postgres $(VENV)/.strace ## run the long tests section by section, with one report in build/soak; run it again to continue; SOAK_SCALE=0.01 to try it, ARGS="clock disk" for some
	$(VENV)/bin/python -m tests.soak --scale $(SOAK_SCALE) $(ARGS)

cover: $(VENV)/.test $(VENV)/.postgres $(VENV)/.prometheus $(VENV)/.chromium $(VENV)/.shells $(VENV)/.nginx $(VENV)/.iproute $(SDKS) $(NPM)/node_modules/.ready ## run the tests and show the branches they miss
	$(VENV)/bin/python -m pytest -n $(WORKERS) --cov --cov-report=term-missing $(ARGS)

reference: $(VENV)/.test ## write the generated pages anew: docs/reference, and the tables of docs/rest.md
	$(VENV)/bin/python -m tests.reference

docs: $(DOCS)/.ready ## build the documentation site into build/site, and check its links and that it loads nothing from elsewhere
	$(DOCS)/bin/python -m tests.docs.site

recording: $(VENV)/.test $(NPM)/node_modules/.ready ## record the commands of the README on a terminal: docs/images/terminal.svg
	$(VENV)/bin/python -m tests.cli.recording

lint: $(VENV)/.test ## check style, format, types and who imports whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict src tests bench fuzz
	$(VENV)/bin/lint-imports --no-logo

format: $(VENV)/.test ## put the code into the project's format
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.test ## measure a call through the hub beside a direct one and a bare relay
	$(VENV)/bin/python -m bench $(ARGS)

bench-peers: $(VENV)/.test ## measure the hub beside other gateways, which are installed into build/peers (a quarter of an hour, and as long once to install); ARGS="--peers fastmcp,tbxark --rounds 3 --seconds 2"
	$(VENV)/bin/python -m bench.peers $(ARGS)

compare: $(VENV)/.test ## measure a call beside the same call in an earlier revision, in several processes of each: REV=v1.0 (five minutes)
	$(VENV)/bin/python -m bench.compare $(REV) $(ARGS)

bus: $(VENV)/.test ## measure a message between two nodes, over Unix sockets and over NATS; fail above 150 µs
	$(VENV)/bin/python -m bench.bus $(ARGS)

crossing: $(VENV)/.test $(VENV)/.postgres ## measure a call that crosses nodes beside the same call at the owner; fail above 300 µs of CPU and 1.5 ms more
	$(VENV)/bin/python -m bench.cluster crossing $(ARGS)

alone: $(VENV)/.test $(VENV)/.postgres ## measure a call at the only node of a cluster beside one at a hub without; fail above 2 % more steps
	$(VENV)/bin/python -m bench.cluster alone $(ARGS)

workers: $(VENV)/.test $(VENV)/.postgres ## measure the calls per second of two workers, each on a core, beside one; fail below 1.6 times, or 0.9 of what the cores allow
	$(VENV)/bin/python -m bench.cluster workers $(ARGS)

links: $(VENV)/.test $(VENV)/.postgres ## measure memory and CPU of idle servers that have dialled in, at their node and at another one, and of idle devices
	$(VENV)/bin/python -m bench.cluster links $(ARGS)

simulate: $(VENV)/.test $(VENV)/.postgres ## predict calls/s, latency and CPU of clusters from measured costs; ARGS=--check measures three real nodes beside that
	$(VENV)/bin/python -m bench.simulate $(ARGS)

crowdkill: $(VENV)/.test ## kill twenty nodes of a cluster, each with a thousand servers and 200 running calls: nothing may run twice (two and a half minutes)
	ISTHMUS_CROWD=1000 ISTHMUS_CROWD_CALLS=200 ISTHMUS_CROWD_ROUNDS=20 $(VENV)/bin/python -m pytest tests/cluster_hubs/test_crowd.py -s --timeout 3600 $(ARGS)

nodekill: $(VENV)/.test $(VENV)/.postgres ## kill nodes of a cluster 300 times under load: no task may be lost or run twice (six minutes)
	ISTHMUS_CLUSTER_KILLS=300 $(VENV)/bin/python -m pytest tests/cluster_database/test_kills.py -s --timeout 7200 $(ARGS)

partitions: $(VENV)/.test $(VENV)/.postgres $(VENV)/.iproute ## cut cables, stop and kill NATS and PostgreSQL: what callers are told, how soon, and when all is well again; needs root (two minutes)
	$(VENV)/bin/python -m bench.partitions $(ARGS)

agents: $(VENV)/.test $(A2A10)/.ready ## measure a task of the hub's agent beside one of the official SDK's
	$(VENV)/bin/python -m bench.agents $(ARGS)

crowd: $(VENV)/.test ## measure what ten thousand servers cost that have dialled in
	$(VENV)/bin/python -m bench.crowd $(ARGS)

relayed: $(VENV)/.test ## measure calls over the relay beside a direct WebSocket
	$(VENV)/bin/python -m bench.relayed $(ARGS)

library: $(VENV)/.test ## measure calls by the library beside those by the official SDK's client
	$(VENV)/bin/python -m bench.library $(ARGS)

trust: $(VENV)/.test ## measure what identity, permission and audit cost a call; fail above 25 µs
	$(VENV)/bin/python -m bench.trust $(ARGS)

code: $(VENV)/.test ## measure what a call costs inside a script, and the start of a script; fail above 300 µs and 25 ms
	$(VENV)/bin/python -m bench.code $(ARGS)

beside: $(VENV)/.test ## measure ordinary calls beside scripts that loop, eat memory and call tools; fail above 1.2 times the quiet p99
	$(VENV)/bin/python -m bench.beside $(ARGS)

scripts: $(VENV)/.test ## kill the hub 200 times in the middle of scripts: no call may be repeated (one to two minutes); ISTHMUS_SCRIPT_KILLS=20 for fewer
	ISTHMUS_SCRIPT_KILLS=$${ISTHMUS_SCRIPT_KILLS:-200} $(VENV)/bin/python -m pytest tests/faults/test_scripts_crash.py -s --timeout 3600 $(ARGS)

telemetry: $(VENV)/.test ## measure what counting and tracing cost a call; fail above 1 µs with telemetry off, 5 µs with a console open, 15 µs with traces
	$(VENV)/bin/python -m bench.telemetry $(ARGS)

lists: $(VENV)/.test ## measure what lists of 10, 1,000 and 10,000 tools cost, and a call beside them; fail if one held the event loop for over 20 ms
	$(VENV)/bin/python -m bench.lists $(ARGS)

search: $(VENV)/.test ## measure tool search: how often the right tool is found beside plain rankings, and what a search costs; fail above 5 ms among 10,000 tools
	$(VENV)/bin/python -m bench.search $(ARGS)

tokens: $(VENV)/.test $(TOKENS)/.ready ## count the tokens that 3, 10 and 50 real servers cost a model before its first word: plain, as a set, by search and as code
	$(VENV)/bin/python -m bench.context $(ARGS)

jobs: $(VENV)/.test $(NPM)/node_modules/.ready ## do ten jobs by a scripted agent in plain, search and code mode: calls, bytes to the model and time
	$(VENV)/bin/python -m bench.jobs $(ARGS)

console: $(VENV)/.test $(VENV)/.chromium ## measure the console at 1,000 servers, 10,000 tools and 500 calls a second, in a real browser; ARGS="--seconds 600" for long
	$(VENV)/bin/python -m bench.console $(ARGS)

screenshots: $(VENV)/.test $(VENV)/.chromium ## take pictures of every page of the console, of a hub with real servers, into docs/images/console
	$(VENV)/bin/python -m tests.console.screenshots

# In CI the commands get the same values each time: a change is not blamed for what a new seed finds.
fuzz: $(FUZZ)/.ready ## give every frontend and parser made-up input; SECONDS_EACH=600 for long, ARGS="mcp relay" for some
	PYTHONPATH=src:. $(FUZZ)/bin/python -m fuzz --seconds $(SECONDS_EACH) --jobs 3 $(ARGS)
	PYTHONPATH=src:. $(FUZZ)/bin/python -m fuzz.openapi --examples $(EXAMPLES)
	PYTHONPATH=src:. $(FUZZ)/bin/python -m fuzz.commands --cases $$((40 * $(EXAMPLES))) $(if $(CI),--seed 1)

gate: $(VENV)/.test ## fail when a part of the hub takes 3 % more steps or 15 % more CPU, or a call through a live hub 5 % more steps, than the committed baseline
	$(VENV)/bin/python -m bench.gate $(ARGS)

resolve: $(VENV)/.test ## install the hub with each framework, which must not get older by it (one to two minutes; asks the package index)
	$(VENV)/bin/python -m tests.frameworks.resolve $(ARGS)

audit: $(AUDIT)/.ready ## ask after known vulnerabilities of what is pinned; ARGS=--strict also fails if nobody answers
	$(AUDIT)/bin/python -m tests.supply.audit $(ARGS)

image: $(VENV)/.test ## build the image and start a hub in it; without Docker, run the Dockerfile's steps in a clean folder
	$(VENV)/bin/python -m tests.supply.image

sbom: $(AUDIT)/.ready ## list everything that a hub runs on, as CycloneDX, in dist/isthmus.cdx.json
	$(AUDIT)/bin/python -m tests.supply.sbom dist/isthmus.cdx.json

vendor: ## build the console's libraries again from their pinned packages; needs npm
	cd $(LIBRARIES) && npm ci --silent --ignore-scripts
	cd $(LIBRARIES) && npx --no esbuild entry.js --bundle --minify --format=esm --target=es2022 --legal-comments=none --log-level=error --outfile=$(CURDIR)/$(CONSOLE)/vendor/ui.js
	@$(PYTHON) -c 'import hashlib, json, pathlib as p; f = p.Path("$(CONSOLE)/vendor/VENDOR.json"); d = json.loads(f.read_text()); d["sha256"] = hashlib.sha256(f.with_name("ui.js").read_bytes()).hexdigest(); f.write_text(json.dumps(d, indent=2) + "\n")'

lock: ## pin the newest versions again; needs uv and npm
	$(COMPILE) --upgrade pyproject.toml --output-file requirements/serve.txt
	$(COMPILE) --upgrade pyproject.toml requirements/image.in --constraint requirements/serve.txt --output-file requirements/image.txt
	$(COMPILE) --upgrade pyproject.toml requirements/test.in --constraint requirements/image.txt --output-file requirements/test.txt
	for sdk in stdio mcp1 a2a10 a2a03 agentvault audit docs tokens; do \
	  $(COMPILE) --upgrade requirements/$$sdk.in --output-file requirements/$$sdk.txt || exit 1; \
	done
	$(COMPILE) --upgrade pyproject.toml $(EXTRAS:%=--extra %) requirements/frameworks.in --output-file requirements/frameworks.txt
	$(COMPILE) --upgrade pyproject.toml requirements/fuzz.in --constraint requirements/serve.txt --output-file requirements/fuzz.txt
	cd $(NPM) && rm -rf node_modules package-lock.json && npm install --package-lock-only --silent
	cd $(SUITE) && rm -rf node_modules package-lock.json && npm install --package-lock-only --silent

clean: ## remove the environments and every cache
	rm -rf $(VENV) $(FUZZ) $(AUDIT) $(DOCS) $(TOKENS) $(dir $(SDKS)) fuzz/findings $(NPM)/node_modules $(SUITE)/node_modules $(LIBRARIES)/node_modules build dist htmlcov .coverage .coverage.* .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests bench fuzz -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps. test.txt is image.txt and more, at the same versions, so one environment serves both.

$(VENV)/.serve: $(VENV)/.made requirements/image.txt pyproject.toml
	@echo "installing the hub into $(VENV) …"
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps --require-hashes -r requirements/image.txt
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.made requirements/test.txt pyproject.toml
	@echo "installing the hub and its tests' tools into $(VENV) (about a minute) …"
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps --require-hashes -r requirements/test.txt
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.serve $@

# An SDK whose versions fit no other environment: .venv-x holds what requirements/x.txt names.
$(SDKS) $(FUZZ)/.ready $(AUDIT)/.ready $(DOCS)/.ready $(TOKENS)/.ready: .venv-%/.ready: .venv-%/.made requirements/%.txt
	@echo "installing the SDK of $*.txt into .venv-$* …"
	@.venv-$*/bin/python $(PIP_INSTALL) $(UNBOUND_$*) --no-deps --require-hashes -r requirements/$*.txt
	@touch $@

# It asks for a Python below 3.12, and works with later ones.
UNBOUND_agentvault := --ignore-requires-python

# A checkout without npm still tests everything else, and says what it leaves out. CI leaves nothing out: as root
# (a container) it fetches npm, and without the servers their tests fail.
$(NPM)/node_modules/.ready: $(NPM)/package-lock.json
	@if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && ! command -v npm >/dev/null && command -v apt-get >/dev/null; then \
	  echo "installing nodejs and npm, which the peers from npm need …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends nodejs npm"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null; \
	fi
	@if command -v npm >/dev/null; then \
	  echo "installing the servers and clients from npm into $(NPM)/node_modules …"; \
	  cd $(NPM) && npm ci --silent --ignore-scripts && touch node_modules/.ready; \
	else \
	  echo "SKIPPED: the tests with servers and clients from npm, because there is no npm. Install Node.js 18 or newer." >&2; \
	fi

# Tasks are kept in a real database too. As root (a container) its server is fetched; a checkout without it says what
# it leaves out, and in CI the tests that need it fail.
$(VENV)/.postgres: | $(VENV)/.made
	@there() { command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }; \
	if ! there && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing postgresql, which the tests of its journal need …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends postgresql"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null || true; \
	fi; \
	if there; then touch $@; else \
	  echo "SKIPPED: the tests with PostgreSQL, because there is no server. Run: sudo apt-get install postgresql" >&2; \
	fi

# Prometheus scrapes the hub and loads the alert rules. As root (a container) it is fetched (22 MB); a checkout without it
# says what it leaves out, and in CI the tests that need it fail.
$(VENV)/.prometheus: | $(VENV)/.made
	@there() { command -v prometheus && command -v promtool; }; \
	if ! there >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing prometheus, which the tests of metrics and alert rules need …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends prometheus"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null || true; \
	fi; \
	if there >/dev/null; then touch $@; else \
	  echo "SKIPPED: the tests with Prometheus, because it is not here. Run: sudo apt-get install prometheus" >&2; \
	fi

# nginx runs with the configuration of deploy/compose. As root (a container) it is fetched; a checkout without it says what
# it leaves out, and in CI the test that needs it fails.
$(VENV)/.nginx: | $(VENV)/.made
	@there() { command -v nginx || test -x /usr/sbin/nginx; }; \
	if ! there >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing nginx, which the test of the load balancer needs …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends nginx-light"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null || true; \
	fi; \
	if there >/dev/null; then touch $@; else \
	  echo "SKIPPED: the test with nginx, because it is not here. Run: sudo apt-get install nginx-light" >&2; \
	fi

# Nodes of a cluster are cut off from each other in network namespaces, which only root can make.
$(VENV)/.iproute: | $(VENV)/.made
	@if ! command -v ip >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing iproute2, which the test of partitions needs …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends iproute2"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null || true; \
	fi; \
	if command -v ip >/dev/null; then touch $@; else \
	  echo "SKIPPED: the test of partitions, because there is no ip. Run: sudo apt-get install iproute2" >&2; \
	fi

# The soak has writes to the disk fail.
$(VENV)/.strace: | $(VENV)/.made
	@if ! command -v strace >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing strace, which the test of failing disks needs …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends strace"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null || true; \
	fi; \
	if command -v strace >/dev/null; then touch $@; else \
	  echo "SKIPPED: the test of failing disks, because there is no strace. Run: sudo apt-get install strace" >&2; \
	fi

# Pages call the hub from a real browser. As root (a container) it is fetched; a checkout without it says what it leaves
# out, and in CI the tests that need it fail.
$(VENV)/.shells: | $(VENV)/.made
	@there() { command -v zsh && command -v fish; }; \
	if ! there >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing zsh and fish, which the tests of completion need …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install -qq -y --no-install-recommends zsh fish"; \
	  { $$install || { apt-get update -qq && $$install; }; } >/dev/null || true; \
	fi; \
	if there >/dev/null; then touch $@; else \
	  echo "SKIPPED: the tests of completion in zsh and fish, because one is missing. Run: sudo apt-get install zsh fish" >&2; \
	fi

$(VENV)/.chromium: | $(VENV)/.made
	@there() { command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable; }; \
	if ! there >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium, which the tests with web pages need …"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install() { for package in chromium-headless-shell chromium; do apt-get install -qq -y --no-install-recommends $$package && break; done; }; \
	  { install || { apt-get update -qq && install; }; } >/dev/null || true; \
	fi; \
	if there >/dev/null; then touch $@; else \
	  echo "SKIPPED: the tests with web pages, because there is no Chromium. Run: sudo apt-get install chromium" >&2; \
	fi

# The suite needs a newer Node.js than many machines have: it runs on the one beside the servers from npm.
$(SUITE)/node_modules/.ready: $(SUITE)/package-lock.json | $(NPM)/node_modules/.ready
	@command -v npm >/dev/null || { echo "The conformance suite is fetched with npm. Install Node.js 18 or newer." >&2; exit 1; }
	@echo "installing the conformance suite into $(SUITE)/node_modules …"
	@cd $(SUITE) && npm ci --silent --ignore-scripts && touch node_modules/.ready

# Debian and Ubuntu keep what `venv` needs in a package of its own: as root (a container) it is fetched,
# otherwise the one command that helps is named.
%/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo missing); \
	  echo "Isthmus needs Python 3.11 or newer, and '$(PYTHON)' is $$found." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $$package, which '$(PYTHON) -m venv' needs …"; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    { apt-get install -qq -y $$package || { apt-get update -qq && apt-get install -qq -y $$package; }; } >/dev/null; \
	  else \
	    echo "'$(PYTHON)' cannot make environments. Install its venv package and run make again:" >&2; \
	    echo "    sudo apt-get install $$package" >&2; exit 1; \
	  fi; }
	@echo "making $* with $$($(PYTHON) --version) …"
	@$(PYTHON) -m venv --clear $*
	@touch $@
