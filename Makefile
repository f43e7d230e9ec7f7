# Two commands to know: `make lab` and `make test`. The first use of any sets up .venv.
PYTHON ?= python3
unexport PYTHONPATH
export TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
RUN = .venv/bin/python -m

.PHONY: lab test proof grade check build bench soak demo setup

lab: setup
	@$(RUN) course lab
# A process for each core, so one thread for each: more would wait for each other.
PYTEST = OMP_NUM_THREADS=1 $(RUN) pytest -q -n logical --dist loadscope
test: setup
	@$(PYTEST) -m "not proof"
proof: setup
	@$(PYTEST) -m proof
grade: setup
	@$(RUN) course grade $(N)
check: setup
	@$(RUN) ruff check . && $(RUN) ruff format --check . && $(RUN) basedpyright && $(RUN) pytest -q tests/test_floors.py && $(RUN) course build --check
build: setup
	@$(RUN) course build
bench: setup
	@for file in benchmarks/*.py; do .venv/bin/python $$file || test $$? = 2 || exit 1; done
soak: setup
	@.venv/bin/python tests/soak.py
	@.venv/bin/python tests/soak_attention.py
	@.venv/bin/python tests/soak_engine.py
	@.venv/bin/python tests/test_compile.py
demo: setup
	@$(RUN) course get-model && $(RUN) paged_attention "What is the capital of France?" "Name three primes." --watch
setup: .venv/ready

# The stamp holds the folder that .venv was made for: one that was moved or copied
# would still import the old tree.
ifneq "$(shell cat .venv/ready 2>/dev/null)" "$(CURDIR)"
.PHONY: .venv/ready
endif
.venv/ready: pyproject.toml
	@$(PYTHON) course/bootstrap.py
