# Every target makes its own .venv first, once for each change of pyproject.toml.
#
#   make test                             a venv of its own, packages from the index
#   make test PYTHON=python3.12           the same, with another interpreter
#   make test TORCH=torch==2.11.0         the same, with another torch
#   make zoo JOBS=2                       every family of models, two at once; writes docs/models.md
#   make bench PYTHON=/opt/py OFFLINE=1   no network: torch and the rest as PYTHON has them (a GPU machine, say)

PYTHON  ?= python3
TORCH   ?= torch==2.13.0
OFFLINE ?=
JOBS    ?= 1

VENV := .venv
BIN  := $(VENV)/bin
DONE := $(VENV)/.installed
ZOO  := $(VENV)/.zoo

.PHONY: demo test lint bench zoo clean

demo: $(DONE)
	$(BIN)/python examples/train_llama.py

test: $(DONE)
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -q

lint: $(DONE)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

bench: $(DONE)
	$(BIN)/python benchmarks/run.py

# Every family of models, each in a process of its own; goes on where an earlier run ended.  Hours on a small machine.
zoo: $(DONE) $(ZOO)
	$(BIN)/python benchmarks/zoo.py --jobs $(JOBS)

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ifeq ($(OFFLINE),)
# torch comes first and pinned: left to the resolver, torch can cost a second download of gigabytes.
$(DONE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@
# torchvision must be the one that goes with torch, so it is left to the resolver beside the torch that is there.
$(ZOO): $(DONE)
	$(BIN)/python -m pip install --quiet -e ".[dev,zoo]" "$(TORCH)"
	touch $@
else
# --system-site-packages sees the base interpreter's packages only; the .pth file adds those of a PYTHON that is
# itself a venv. Without a pip of its own, the venv uses PYTHON's, and PYTHON's setuptools (77 or newer) with it.
$(DONE): pyproject.toml
	$(PYTHON) -m venv --without-pip --system-site-packages $(VENV)
	$(PYTHON) -c 'import site; print("\n".join(site.getsitepackages()))' \
		> "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	$(BIN)/python -m pip install --quiet -e . --no-deps --no-build-isolation
	touch $@

$(ZOO): $(DONE)
	touch $@
endif
