# Every target makes its own .venv first, once for each change of pyproject.toml, PYTHON or TORCH.
#
#   make test                             a venv of its own, packages from the index
#   make test-fast                        no C++ compiler, no slow tests, few examples of each property: three minutes
#   make examples                         every script of examples/, compared with eager training: ten minutes
#   make test PYTHON=python3.12           the same, with another interpreter
#   make test TORCH=torch==2.11.0         the same, with another torch
#   make test-simulated                   the CUDA build on a simulated GPU; its 5 GB are downloaded once, into CUDA_BASE
#   make test-simulated LANE=smoke        some minutes of it
#   make test-simulated CUDA_TORCH=torch===2.11.0    with another torch: fewer trainings
#   make zoo JOBS=2                       every family of models, two at once; writes docs/models.md
#   make bench PYTHON=/opt/py OFFLINE=1   no network: torch and the rest as PYTHON has them (a GPU machine, say)

PYTHON  ?= python3
TORCH   ?= torch==2.13.0
OFFLINE ?=
JOBS    ?= 1
WORKERS ?= 2

VENV := .venv
BIN  := $(VENV)/bin
DONE := $(VENV)/.installed
# Made with another interpreter or another torch, the .venv is made anew.
MADE := $(shell cat $(DONE) 2>/dev/null)
ifneq ($(MADE),)
ifneq ($(MADE),$(PYTHON) $(TORCH))
.PHONY: $(DONE)
endif
endif

# The CUDA build of torch for the simulated GPU lies outside of the clone, so that another clone finds it again. The
# three = keep pip from a CPU build of the same version.
CUDA_TORCH ?= torch===2.13.0
CUDA_BASE  ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/memgraph/$(subst =,,$(CUDA_TORCH))-cuda
CUDA_VENV  := .venv-cuda
CARD       ?= H100
LANE       ?=

ZOO    := $(VENV)/.zoo
TRL    := $(VENV)/.trl
VISION := $(VENV)/torchvision
LAID   := build/installed

CUDA_DONE := $(CUDA_VENV)/.installed
ifneq ($(shell cat $(CUDA_DONE) 2>/dev/null),$(CUDA_BASE))
.PHONY: $(CUDA_DONE)
endif

.PHONY: demo test test-fast test-simulated cuda-base examples lint bench zoo clean

demo: $(DONE)
	$(BIN)/python examples/train_llama.py

# One thread a worker: the tensors are tiny, and two threads each would only wait for one another. Python keeps what it
# compiles: many tests start a process of their own, and memgraph alone takes more than a second to compile. And glibc
# keeps the memory that is freed: the kernel would clear it anew each time.
KEPT := GLIBC_TUNABLES=glibc.malloc.trim_threshold=1099511627776:glibc.malloc.mmap_threshold=1099511627776

test: $(DONE)
	$(KEPT) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile \
		--no-loadscope-reorder -m "not examples" --durations=30

test-fast: $(DONE)
	$(KEPT) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile \
		--no-loadscope-reorder -m "not inductor and not slow" --hypothesis-profile=fast

# What torch allocates on a GPU, and in which order: on one that is not there (memgraph/simulator). LANE is a mark.
test-simulated: $(CUDA_DONE)
	OMP_NUM_THREADS=1 $(CUDA_VENV)/bin/python -m memgraph.simulator --card $(CARD) -- \
		-m pytest -q -n $(WORKERS) --dist load --durations=20 $(if $(LANE),-m $(LANE)) tests/simulated

# Where torch's CUDA build lies, or would.
cuda-base:
	@echo "$(CUDA_BASE)"

# Every script of examples/ against eager training.
examples: $(DONE) $(TRL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/integrations/test_examples.py

lint: $(DONE)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	rm -rf $(LAID) && mkdir -p $(LAID) && cp -r memgraph $(LAID)/ && cp -r passes $(LAID)/memgraph/passes
	cd $(LAID) && $(CURDIR)/$(BIN)/python -c 'from importlinter.cli import lint_imports_command as check; check()' \
		--no-cache --config $(CURDIR)/pyproject.toml
	cd $(LAID) && $(CURDIR)/$(BIN)/python -m mypy --config-file $(CURDIR)/pyproject.toml memgraph

bench: $(DONE)
	$(BIN)/python -m benchmarks.run

# Every family of models, each in a process of its own; goes on where an earlier run ended.  Hours on a small machine.
zoo: $(DONE) $(ZOO)
	PYTHONPATH=$(VISION) $(BIN)/python -m benchmarks.zoo --jobs $(JOBS)

$(CUDA_BASE)/.ready:
	$(PYTHON) -m venv --clear $(CUDA_BASE)
	$(CUDA_BASE)/bin/python -m pip install --quiet "$(CUDA_TORCH)" "setuptools>=77"
	$(CUDA_BASE)/bin/python -m pip install --quiet networkx pytest pytest-timeout pytest-xdist \
		hypothesis transformers accelerate peft numpy scipy "highspy>=1.8" rich "pydantic>=2" typer matplotlib
	touch $@

# A thin environment over it, for this clone's memgraph, and for what memgraph needs and an older CUDA_BASE lacks.
$(CUDA_DONE): $(CUDA_BASE)/.ready pyproject.toml
	$(CUDA_BASE)/bin/python -m venv --clear --without-pip $(CUDA_VENV)
	$(CUDA_BASE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(CUDA_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	$(CUDA_VENV)/bin/python -m pip install --quiet -e . --no-build-isolation
	echo "$(CUDA_BASE)" > $@

clean:
	rm -rf $(VENV) $(CUDA_VENV) build dist out *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ifeq ($(OFFLINE),)
# torch comes first and pinned: left to the resolver, torch can cost a second download of gigabytes. It brings the
# setuptools that it bears (2.11: older than 82).
$(DONE): pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	echo "$(PYTHON) $(TORCH)" > $@
# torchvision (torch 2.N has 0.(N + 15)) is built for CUDA: beside a CPU build of torch it breaks the import of
# transformers. So it lies in a folder of its own, which the zoo alone looks into.
$(ZOO): $(DONE)
	$(BIN)/python -m pip install --quiet -e ".[dev,zoo]" "$(TORCH)"
	$(BIN)/python -m pip install --quiet --no-deps --target $(VISION) \
		"torchvision==0.$$($(BIN)/python -c 'import torch; print(int(torch.__version__.split(".")[1]) + 15)').*"
	touch $@

$(TRL): $(DONE)
	$(BIN)/python -m pip install --quiet -e ".[dev,trl]" "$(TORCH)"
	touch $@
else
# --system-site-packages sees the base interpreter's packages only; the .pth file adds those of a PYTHON that is
# itself a venv. Without a pip of its own, the venv uses PYTHON's, and PYTHON's setuptools (77 or newer) with it.
$(DONE): pyproject.toml
	$(PYTHON) -m venv --clear --without-pip --system-site-packages $(VENV)
	$(PYTHON) -c 'import site; print("\n".join(site.getsitepackages()))' \
		> "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	$(BIN)/python -m pip install --quiet -e . --no-deps --no-build-isolation
	echo "$(PYTHON) $(TORCH)" > $@

$(ZOO) $(TRL): $(DONE)
	touch $@
endif
