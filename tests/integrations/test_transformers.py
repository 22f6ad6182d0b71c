"""The Trainer's callback: what it compiles, what it refuses, what it logs. Inductor runs in one test alone."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from memgraph import MemgraphError, OptionsError, Report
from memgraph.base import compat
from memgraph.integrations.transformers import CannotCompileError, MemgraphCallback
from memgraph.reporting import log

SIZES = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
FIGURES = {"memgraph_budget_bytes", "memgraph_predicted_peak_bytes", "memgraph_saved_bytes"}


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False))


def arguments(folder, **others) -> TrainingArguments:
    settings = dict(max_steps=2, per_device_train_batch_size=2, logging_steps=1, report_to="none", use_cpu=True)
    return TrainingArguments(str(folder), disable_tqdm=True, save_strategy="no", **settings, **others)


def make_trainer(folder, model, callbacks, **others) -> Trainer:
    torch.manual_seed(0)
    texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(64, (4, 16))]
    return Trainer(model, arguments(folder, **others), train_dataset=texts, eval_dataset=texts[:2], callbacks=callbacks)


def begin(callback: MemgraphCallback, trainer: Trainer, model=None) -> None:
    callback.on_train_begin(
        trainer.args, trainer.state, trainer.control, model=trainer.model if model is None else model
    )


@pytest.fixture
def trainer(tmp_path):
    return make_trainer(tmp_path, make_model(), None)


def figures(**others) -> Report:
    """A report with made-up figures."""
    known = dict(key="", graph="g 0/0", device="cpu", requested="100", budget=100, reserve=0, baseline=10)
    times = dict(predicted_time=1.0, unplanned_time=1.0, recompute_time=0.0, source_of_peak="graph sweep")
    return Report(**known | times | dict(unplanned_peak=120, predicted_peak=90) | others)


def test_the_model_is_compiled_in_place_when_training_begins(trainer):
    names = list(trainer.model.state_dict())
    callback = MemgraphCallback({"budget": "1GiB"})
    assert compat.compiled_form(trainer.model) is None
    begin(callback, trainer)
    compiled = compat.compiled_form(trainer.model)
    assert compiled is not None and type(trainer.model) is LlamaForCausalLM
    assert list(trainer.model.state_dict()) == names
    begin(callback, trainer)  # train() is called again
    assert compat.compiled_form(trainer.model) is compiled


def test_what_is_compiled_is_the_model_within_its_wrapper(trainer):
    wrapper = torch.nn.DataParallel(trainer.model)
    begin(MemgraphCallback(), trainer, wrapper)
    assert compat.compiled_form(trainer.model) is not None and compat.compiled_form(wrapper) is None


def test_a_model_with_adapters_is_compiled(tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(make_model(), peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    saved = list(peft.get_peft_model_state_dict(model))
    begin(MemgraphCallback(), make_trainer(tmp_path, model, None))
    assert compat.compiled_form(model) is not None
    assert list(peft.get_peft_model_state_dict(model)) == saved


def test_options_are_checked_at_once():
    with pytest.raises(OptionsError, match="did you mean 'budget'"):
        MemgraphCallback({"bugdet": "1GiB"})


def test_a_compiled_model_is_refused(trainer):
    trainer.model.compile(backend="eager")
    with pytest.raises(CannotCompileError, match="the model is compiled already") as caught:
        begin(MemgraphCallback(), trainer)
    assert isinstance(caught.value, MemgraphError)


def test_a_model_that_torch_compile_returned_is_refused(trainer):
    with pytest.raises(CannotCompileError, match="the model is compiled already"):
        begin(MemgraphCallback(), trainer, torch.compile(trainer.model, backend="eager"))


def test_a_model_with_a_compiled_layer_is_refused(trainer):
    trainer.model.model.layers[0].compile(backend="eager")
    with pytest.raises(CannotCompileError, match=r"the module 'model\.layers\.0' of the model is compiled already"):
        begin(MemgraphCallback(), trainer)


def test_the_trainers_own_compilation_is_refused(trainer):
    trainer.args.torch_compile = True
    with pytest.raises(CannotCompileError, match="torch_compile=True"):
        begin(MemgraphCallback(), trainer)
    assert compat.compiled_form(trainer.model) is None


def test_several_gpus_in_one_process_are_refused(trainer):
    trainer.args._n_gpu = 2
    with pytest.raises(CannotCompileError, match="2 GPUs in one process"):
        begin(MemgraphCallback(), trainer)


def test_torch_leaves_what_is_compiled_with_the_first_copy_of_a_model():
    """Why several GPUs in one process are refused."""
    model = make_model()
    model.compile(backend="eager")
    copy = model._replicate_for_data_parallel()
    assert compat.compiled_form(copy) is compat.compiled_form(model)


def test_the_arguments_of_the_compilation_are_those_that_were_given(trainer):
    broken = torch.nn.Linear(2, 2)
    broken.register_forward_pre_hook(lambda *_: torch._dynamo.graph_break())
    begin(MemgraphCallback(fullgraph=True), trainer, broken)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        broken(torch.ones(1, 2))


def test_nothing_is_logged_before_there_is_a_plan(trainer):
    callback = MemgraphCallback()
    begin(callback, trainer)
    logs = {"loss": 1.0}
    callback.on_log(trainer.args, trainer.state, trainer.control, logs=logs)
    assert logs == {"loss": 1.0} and callback.figures() == {}


def test_the_figures_are_those_of_the_newest_plans_since_training_began(trainer):
    log.record(figures(predicted_peak=99))  # of another model
    callback = MemgraphCallback()
    begin(callback, trainer)
    log.record(figures(graph="first 0/0", predicted_peak=95))
    log.record(figures(graph="first 0/0", predicted_peak=80))  # planned anew
    log.record(figures(graph="second 0/0", predicted_peak=70))
    expected = {"memgraph_budget_bytes": 100, "memgraph_predicted_peak_bytes": 80, "memgraph_saved_bytes": 40}
    assert callback.figures() == expected
    log.record(figures(graph="third 0/0", budget=None, predicted_peak=130))
    assert callback.figures() == {"memgraph_predicted_peak_bytes": 130, "memgraph_saved_bytes": -10}


def test_an_evaluation_is_logged_as_it_is(trainer):
    callback = MemgraphCallback()
    begin(callback, trainer)
    log.record(figures())
    for logs, expected in (({"eval_loss": 1.0}, False), ({"loss": 1.0}, True), ({"train_loss": 1.0}, True)):
        callback.on_log(trainer.args, trainer.state, trainer.control, logs=logs)
        assert (logs.keys() >= FIGURES) is expected


class Logger(TrainerCallback):
    """What `report_to` adds: it looks at what is logged in its turn."""

    def __init__(self) -> None:
        self.seen: list[dict] = []

    def on_log(self, args, state, control, logs=None, **others):
        self.seen.append(dict(logs))


def test_the_first_callback_is_seen_by_all_loggers(tmp_path):
    logger = Logger()
    trainer = make_trainer(tmp_path, make_model(), [logger])
    callback = MemgraphCallback()
    assert callback.put_first(trainer) is callback
    assert trainer.callback_handler.callbacks[0] is callback
    begin(callback, trainer)
    log.record(figures())
    trainer.log({"loss": 1.0})
    assert logger.seen[0].keys() >= FIGURES
    assert trainer.state.log_history[-1].keys() >= FIGURES


@pytest.mark.inductor
@pytest.mark.timeout(600)
def test_a_trainer_trains_evaluates_saves_and_loads(tmp_path):
    losses = []
    for callbacks in ([MemgraphCallback({"budget": "1GiB"})], None):
        torch._dynamo.reset()
        trainer = make_trainer(tmp_path, make_model(), callbacks)
        result = trainer.train()
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        losses.append([entry["loss"] for entry in history] + [trainer.evaluate()["eval_loss"]])
        if callbacks:
            planned, history = trainer, history
            assert len(history) == 2
            for entry in (*history, result.metrics):
                assert entry.keys() >= FIGURES
                assert entry["memgraph_budget_bytes"] == 2**30
                assert 0 < entry["memgraph_predicted_peak_bytes"] <= 2**30
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    planned.save_model(str(tmp_path / "saved"))
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    for name, parameter in planned.model.named_parameters():
        assert loaded.get_parameter(name).equal(parameter)
