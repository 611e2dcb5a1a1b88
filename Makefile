# `make` searches, plots and exports a policy; `make test` checks everything. Both make their own
# environment in .venv and are quick when repeated.
.DEFAULT_GOAL := front
.DELETE_ON_ERROR:
.PHONY: front test suite notebook docs figures site reference oldest lint slow browser peers cuda mindspore bench mutants faults $(FAULTS:%=faults-%) clean

PYTHON ?= python3
STUDY ?= studies/lenet5-digits.toml
PYTEST_WORKERS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt
INSTALL := $(PIP) --no-build-isolation --editable
SOURCES := pyproject.toml .ci/constraints.txt $(shell find policysearch -name '*.[ch]')

# More BLAS threads change the bits of a result and slow down a busy machine.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
# Tests start many processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

front: .venv/package.stamp
	$(BIN)/policysearch run $(STUDY)
	$(BIN)/policysearch plot $(STUDY)
	$(BIN)/policysearch export $(STUDY)

test: lint suite

# By file, so that what a file makes once is made once. That asserts say what they compared takes each
# worker half a minute to prepare; so what failed runs again with that.
suite: .venv/test.stamp
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --assert=plain \
		|| { $(BIN)/pytest --last-failed --last-failed-no-failures none; exit 1; }

# The notebook of the manual, cell by cell: a minute.
notebook: .venv/test.stamp
	$(BIN)/pytest -m slow tests/test_notebook.py

docs: .venv/package.stamp
	$(BIN)/policysearch keys > docs/study-file.md
	$(BIN)/python -m policysearch.report.registries > docs/registries.md
	$(BIN)/python -m policysearch.commands.registry > docs/commands.md
	$(BIN)/python -m policysearch.importers.rules > docs/supported-ops.md
	$(BIN)/python -m policysearch.report.target_pages docs

# README's picture and the numbers of its verdict, from the study; four minutes.
figures: .venv/package.stamp
	$(BIN)/python -m benchmarks.figures

# The manual as a site, in build/site/index.html; a broken link or name fails.
site: .venv/docs.stamp
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/site

reference: .venv/test.stamp
	PYTEST_WORKERS=$(PYTEST_WORKERS) .ci/reference

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# With the oldest versions that pyproject.toml allows, in an environment of their own. What lies
# below them is of today, and says so.
oldest: .venv-oldest/made.stamp
	.venv-oldest/bin/pytest -W ignore::DeprecationWarning -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

slow: .venv/test.stamp
	$(BIN)/pytest -n $(PYTEST_WORKERS) -m slow

# The page of a study in a real browser; needs chromium (apt-get install chromium).
browser: .venv/browser.stamp
	CI=true $(BIN)/pytest tests/test_page.py tests/test_page_in_browser.py

# The torch executor's tests on the first GPU; needs a torch for CUDA in .venv.
cuda: .venv/peers.stamp
	TORCH_PLACE=cuda $(BIN)/pytest tests/test_torch_rounding.py tests/test_torch_step.py tests/test_torch_training.py

peers: .venv/peers.stamp
	$(BIN)/pytest -m "(peers or torch) and not slow"

# MindSpore in an environment of its own: it needs an older numpy.
mindspore: .venv/test.stamp .venv-mindspore/made.stamp
	$(BIN)/pytest -m mindspore

bench: .venv/peers.stamp
	$(BIN)/python -m benchmarks.rounding --peers
	$(BIN)/python -m benchmarks.step --peers
	$(BIN)/python -m benchmarks.step --nets deep --batches 16 --out benchmarks/results/deep
	$(BIN)/python -m benchmarks.ops
	$(BIN)/python -m benchmarks.accumulators
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.depth
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.processes

# Damaged and hostile files, killed processes, full disks; `make -j2 faults` takes an hour, or one
# part alone by `make faults-files`.
FAULTS := records flips cuts studies files text code disk load kills runs clusters
faults: $(FAULTS:%=faults-%)
$(FAULTS:%=faults-%): faults-%: .venv/test.stamp
	$(BIN)/python -m benchmarks.faults --part $*

# Minutes to an hour; goes on where it was interrupted.
mutants: .venv/mutants.stamp
	$(BIN)/python -m benchmarks.mutants --seed 0 --sample 300

.venv/made.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) is too old or missing; expected Python 3.11 or newer (make PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "make: $(PYTHON) cannot make environments; install its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) setuptools numpy  # en_dtypes is built where it has no wheel (Python 3.13), and needs numpy
	@touch $@

.venv/package.stamp: .venv/made.stamp $(SOURCES)
	$(INSTALL) .
	@touch $@

.venv/test.stamp: .venv/made.stamp $(SOURCES)
	$(INSTALL) '.[test,lint]'
	@touch $@ .venv/package.stamp

.venv/browser.stamp: .venv/made.stamp $(SOURCES)
	$(INSTALL) '.[test,lint,browser]'
	@touch $@ .venv/test.stamp .venv/package.stamp

.venv/docs.stamp: .venv/package.stamp
	$(INSTALL) '.[docs]'
	@touch $@

.venv/peers.stamp: .venv/test.stamp
	$(INSTALL) '.[test,torch,peers]'
	@touch $@

.venv/mutants.stamp: .venv/test.stamp
	$(INSTALL) '.[test,torch,mutants]'
	@touch $@

.venv-mindspore/made.stamp:
	$(PYTHON) -m venv .venv-mindspore
	.venv-mindspore/bin/python -m pip install --quiet --disable-pip-version-check \
		mindspore==2.10.0 'numpy<2' 'scipy<1.14'
	@touch $@

.venv-oldest/made.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-oldest/bin/uv pip compile --quiet --python .venv-oldest/bin/python --extra test \
		--resolution lowest-direct --output-file .venv-oldest/oldest.txt pyproject.toml
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python --requirement .venv-oldest/oldest.txt
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python --no-deps --editable .
	@touch $@

clean:
	rm -rf .venv .venv-mindspore .venv-oldest build dist *.egg-info $$(find policysearch -name '*.so')
