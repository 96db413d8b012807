"""The training itself, by TRL and PEFT: a job enters; checkpoints and rows of a log leave as it goes. The only module that imports either.

Both trainers are `SFTTrainer`s. The draft's uses its loss as it is. The target's has its own loss, of one position alone, and asks the
model for the logits of that position only, so that a prompt of several whole thoughts does not cost a vocabulary for each of its tokens.
Everything random is seeded, and a checkpoint holds the state of it: training that continues from one computes what it would have computed.
"""

import gc
import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeAlias

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from msgspec import Struct
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from datasets import Dataset
from pipeline.engines.checkpoint import ANEW
from pipeline.engines.torch.tensors import flaw_in_conversion, flaw_in_loading, flaw_in_pickle
from pipeline.errors import GraphError, RunError, UsageError, did_you_mean, reason
from pipeline.training.lora.config import DraftConfig, SelectConfig, TrainConfig
from pipeline.training.lora.log import Log, StepRow, ValidationRow
from pipeline.training.lora.losses import LOSSES, PADDING, option_logprobs, outcomes
from pipeline.training.lora.measures import draft_figures, select_figures
from pipeline.training.lora.output import CHECKPOINTS_KEPT, is_last, mark_whole
from pipeline.training.lora.tokens import DraftExample, SelectExample, TokenExample

Batch: TypeAlias = dict[str, torch.Tensor]
NO_MEMORY = (
    "the GPU's memory is used up; lower batch_size, set gradient_checkpointing: true, lower max_length, or use more GPUs, and start again"
)
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
"""What transformers calls them."""


class Job(Struct, frozen=True, kw_only=True):
    """What is to be trained."""

    config: TrainConfig
    model: str
    """A folder or hub name."""
    train: Sequence[TokenExample]
    validation: Sequence[TokenExample]
    checkpoints: Path
    """The folder of the checkpoints."""
    checkpoint: Path | None
    """Where to continue from; of several processes that of the first counts."""


class Facts(Struct, frozen=True, kw_only=True):
    """What only the training knows about itself."""

    trained_parameters: int
    parameters: int
    """Of the model, the trained ones aside."""
    device: str
    precision: str


def train(job: Job, open_log: Callable[[], Log] | None) -> Facts:
    """Train, or continue a training, until all steps are done; `open_log` gives the log of the first process, None in the others.

    Raises `UsageError` for a model that cannot be loaded, has no such layers or is none that TRL or PEFT takes, `RunError` where memory
    runs out or the loss is lost.
    """
    logging.disable_progress_bar()
    try:
        facts = _trained(job, open_log)
    except torch.OutOfMemoryError as error:
        raise RunError(NO_MEMORY) from error
    # What other processes are connected to must be gone before the connection is: freed afterwards it may wait for ever.
    gc.collect()
    PartialState().wait_for_everyone()
    PartialState().destroy_process_group()
    return facts


def _trained(job: Job, open_log: Callable[[], Log] | None) -> Facts:
    """When it returns, the trainer is not referred to any more."""
    precision = _precision(job.config)
    with _refusals(job.config):
        arguments = _arguments(job, precision)
    checkpoint = _agreed(job.checkpoint)
    arguments.eval_on_start = bool(job.validation) and checkpoint is None
    model = _model(job, precision, arguments)
    with _refusals(job.config):
        trainer = _trainer(job, model, arguments)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Reports(None if open_log is None else open_log()))
    if checkpoint is None or not is_last(Path(checkpoint)):
        trainer.train(resume_from_checkpoint=checkpoint)
    parameters = [(parameter.numel(), parameter.requires_grad) for parameter in trainer.model.parameters()]
    return Facts(
        trained_parameters=sum(count for count, is_trained in parameters if is_trained),
        parameters=sum(count for count, is_trained in parameters if not is_trained),
        device=_device_name(job.config, arguments),
        precision=str(precision).removeprefix("torch."),
    )


@contextmanager
def _refusals(config: TrainConfig) -> Iterator[None]:
    """Turn what transformers, PEFT and TRL say of settings and models that they do not accept into one error."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{config.model}: cannot be trained with these settings: {reason(error)}") from error


class DraftTrainer(SFTTrainer):
    """Learns completions, with the loss of its base class: the mean cross entropy of their tokens (SCoT eq. 2)."""

    def compute_loss(self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None) -> torch.Tensor:
        """Nobody asks for outputs, as `prediction_step` does not.

        Of a model on several GPUs the base class has its sum on that of the output layer, and divides it by a count on the first one. A
        number is on none; and the loss goes to the first one, where the trainer adds it up.
        """
        count = None if num_items_in_batch is None else int(num_items_in_batch)
        loss: torch.Tensor = super().compute_loss(model, inputs, num_items_in_batch=count)
        return loss.to(self.args.device)

    def prediction_step(self, model: Any, inputs: Batch, prediction_loss_only: bool, ignore_keys: Any = None) -> tuple[Any, Any, Any]:
        """The predictions are the outcomes of the examples, with the columns of `measures`."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            scored = model(**inputs, use_cache=False, fused_lm_head=True)
        tokens = scored.label_mask.sum(dim=1)
        found = torch.stack([-scored.log_probs.sum(dim=1).float(), tokens.float()], dim=1)
        return found[:, 0].sum() / tokens.sum(), found, tokens

    def create_model_card(self, *arguments: Any, **named: Any) -> None:
        """No card of TRL's: the adapter has one of its own."""


class SelectTrainer(SFTTrainer):
    """Learns the token that names a right option (SCoT 3.4). Each prompt ends at the last position, which alone has logits."""

    loss_is_scaled_for_ga = False
    """The loss is the mean of a batch: transformers divides it by the number of batches that make a step."""

    def __init__(self, *arguments: Any, loss: str, **named: Any) -> None:
        """`loss` is the name of one of `LOSSES`."""
        super().__init__(*arguments, **named)
        self._loss = LOSSES[loss]
        takes = inspect.signature(self.model.get_base_model().forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def compute_loss(self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        logprobs = self._logprobs(model, inputs)
        loss = self._loss(logprobs, inputs["right"]).mean()
        return (loss, {"logprobs": logprobs}) if return_outputs else loss

    def prediction_step(self, model: Any, inputs: Batch, prediction_loss_only: bool, ignore_keys: Any = None) -> tuple[Any, Any, Any]:
        """The predictions are the outcomes of the examples, with the columns of `measures`."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            logprobs = self._logprobs(model, inputs)
        loss = self._loss(logprobs, inputs["right"])
        return loss.mean(), outcomes(loss, logprobs, inputs["right"], inputs["none"]), inputs["none"]

    def create_model_card(self, *arguments: Any, **named: Any) -> None:
        """No card of TRL's: the adapter has one of its own."""

    def _logprobs(self, model: Any, inputs: Batch) -> torch.Tensor:
        """Log probabilities of the options, (examples, options)."""
        asked = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        logits = model(**asked, use_cache=False, **self._last_only).logits
        return option_logprobs(logits[:, -1], inputs["option_ids"])


def collate_choices(examples: Sequence[Mapping[str, Any]]) -> Batch:
    """A batch of choices: prompts padded on the left, so that all of them end at the last position, and options padded on the right."""
    longest, most = max(len(each["ids"]) for each in examples), max(len(each["option_ids"]) for each in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    option_ids = torch.full((len(examples), most), PADDING)
    right = torch.zeros(len(examples), most, dtype=torch.bool)
    for place, each in enumerate(examples):
        length = len(each["ids"])
        ids[place, longest - length :] = torch.tensor(each["ids"])
        mask[place, longest - length :] = 1
        option_ids[place, : len(each["option_ids"])] = torch.tensor(each["option_ids"])
        right[place, each["right"]] = True
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
        "option_ids": option_ids,
        "right": right,
        "none": torch.tensor([each["none"] for each in examples]),
    }


class _Reports(TrainerCallback):
    """Writes what the trainer logs into the log, and marks checkpoints that are whole."""

    def __init__(self, log: Log | None) -> None:
        """`log`: None in all processes but the first."""
        self._log = log

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **others: Any) -> None:
        row = _row(logs or {}, state)
        if self._log is not None and row is not None:
            self._log.write(row, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """No checkpoint holds the losses since the last row, so that each step with one has a row, too:
        that after it is then the same whether the training was interrupted or not."""
        control.should_log = control.should_log or control.should_save

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Every process has written its part before the first one says so."""
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            mark_whole(Path(args.output_dir), state.global_step)


def _row(logs: Mapping[str, float], state: Any) -> StepRow | ValidationRow | None:
    """The row for what transformers logs; None for what it says of a training as a whole."""
    place: dict[str, Any] = {"step": state.global_step, "epoch": round(state.epoch or 0.0, 6), "time_unix_ns": time.time_ns()}
    if "eval_loss" in logs:
        known = set(ValidationRow.__struct_fields__) - place.keys()
        figures: dict[str, Any] = {name.removeprefix("eval_"): value for name, value in logs.items()}
        return ValidationRow(**place, **{name: figures[name] for name in figures.keys() & known})
    if "loss" in logs:
        return StepRow(**place, loss=logs["loss"], learning_rate=logs["learning_rate"], grad_norm=logs.get("grad_norm", 0.0))
    return None


def _precision(config: TrainConfig) -> torch.dtype:
    if config.precision != "auto":
        return torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    on_gpu = config.device == "auto" and torch.cuda.is_available()
    return torch.bfloat16 if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32


def _arguments(job: Job, precision: torch.dtype) -> SFTConfig:
    """The settings of the trainer: each default of TRL that would change the data or the numbers is set here."""
    config = job.config
    arguments = SFTConfig(
        output_dir=str(job.checkpoints),
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        bf16=precision == torch.bfloat16,
        fp16=False,
        use_cpu=config.device == "cpu",
        gradient_checkpointing=config.gradient_checkpointing,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        lr_scheduler_type=SCHEDULES[config.schedule],
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
        data_seed=config.seed,
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if job.validation else "no",
        save_strategy="steps",
        save_steps=config.save_every,
        save_total_limit=CHECKPOINTS_KEPT,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        dataloader_pin_memory=config.device == "auto" and torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
    )
    batches = math.ceil(math.ceil(len(job.train) / config.batch_size) / arguments.world_size)
    arguments.eval_steps = config.evaluate_every or math.ceil(batches / config.gradient_accumulation)
    if arguments.world_size == 1 and arguments.n_gpu > 1:  # one process with several GPUs spreads one model over them
        arguments._n_gpu = 1
    return arguments


def _model(job: Job, precision: torch.dtype, arguments: SFTConfig) -> Any:
    """The model, with every one of its weights from its files."""
    config = job.config
    device_map = "auto" if _is_spread(config, arguments) else None
    options = {"dtype": precision, "trust_remote_code": config.trust_remote_code, "device_map": device_map}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(job.model, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    except (RuntimeError, UnpicklingError) as error:
        said = flaw_in_pickle(error) or flaw_in_conversion(error) or reason(error)
        raise UsageError(f"{job.model}: cannot be loaded: {said}; {ANEW}") from error
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"{job.model}: cannot be loaded: {reason(error)}; {ANEW}") from error
    model, report = loaded
    if (flaw := flaw_in_loading(report)) is not None:
        raise UsageError(f"{job.model}: cannot be trained: {flaw}; {ANEW}")
    _check_targets(config, model)
    return model


def _check_targets(config: TrainConfig, model: Any) -> None:
    """Raise `GraphError` for a target that PEFT would not find: the end of no linear layer's name, or that of the output layer alone, of
    which TRL uses the weights without what PEFT puts beside them."""
    output = model.get_output_embeddings()
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not output]
    for target in config.lora.targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            known = {name.rpartition(".")[2] for name in linear}
            what = f"{config.model} has no linear layer `{target}` before its output layer"
            raise GraphError("lora.targets", f"{what}; {did_you_mean(target, known)}")


def _is_spread(config: TrainConfig, arguments: SFTConfig) -> bool:
    """Whether one process has several GPUs, over which it spreads one model."""
    return config.device == "auto" and arguments.world_size == 1 and torch.cuda.device_count() > 1


def _trainer(job: Job, model: Any, arguments: SFTConfig) -> SFTTrainer:
    """The trainer of the config's kind, with the model and its LoRA matrices."""
    config = job.config
    lora = config.lora
    matrices = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias=lora.bias,
    )
    common = {
        "model": model,
        "args": arguments,
        "peft_config": matrices,
        "processing_class": _tokenizer(job),
        "train_dataset": _dataset(job.train),
        "eval_dataset": _dataset(job.validation) if job.validation else None,
    }
    if isinstance(config, SelectConfig):
        return SelectTrainer(**common, loss=config.loss, data_collator=collate_choices, compute_metrics=_figures(select_figures))
    assert isinstance(config, DraftConfig)
    collator = DataCollatorForLanguageModeling(pad_token_id=0)  # padding is masked, so that any id will do
    return DraftTrainer(**common, data_collator=collator, compute_metrics=_figures(draft_figures))


def _figures(measure: Callable[[Any], dict[str, float]]) -> Callable[[Any], dict[str, float]]:
    """`measure` for what `Trainer` passes to it."""
    return partial(lambda measured, prediction: measured(prediction.predictions), measure)


def _dataset(examples: Sequence[TokenExample]) -> Dataset:
    """The examples as TRL takes them: with the columns that their collator reads."""
    if isinstance(examples[0], SelectExample):
        rows = [_choice_row(each) for each in examples if isinstance(each, SelectExample)]
    else:
        rows = [{"input_ids": list(each.ids), "labels": list(each.labels)} for each in examples if isinstance(each, DraftExample)]
    return Dataset.from_list(rows)


def _choice_row(example: SelectExample) -> dict[str, Any]:
    none = -1 if example.none is None else example.none
    return {"ids": list(example.ids), "option_ids": list(example.option_ids), "right": list(example.right), "none": none}


def _tokenizer(job: Job) -> Any:
    """The tokenizer that the trainer saves with its checkpoints; it computes nothing with it."""
    try:
        return PreTrainedTokenizerFast.from_pretrained(job.model)
    except (OSError, ValueError):
        return AutoTokenizer.from_pretrained(job.model, trust_remote_code=job.config.trust_remote_code)


def _agreed(checkpoint: Path | None) -> str | None:
    """The checkpoint from which all processes continue: that of the first one. To be called when the processes are connected."""
    agreed = [None if checkpoint is None else str(checkpoint)]
    broadcast_object_list(agreed)
    return agreed[0]


def _device_name(config: TrainConfig, arguments: SFTConfig) -> str:
    """What was trained on, such as `2 x NVIDIA H100`: all GPUs of a model that is spread, else that of this process for each process."""
    if arguments.device.type != "cuda":
        counts = {f"a CPU ({torch.get_num_threads()} threads)": arguments.world_size}
    elif _is_spread(config, arguments):
        counts = Counter(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    else:
        counts = {torch.cuda.get_device_name(arguments.device): arguments.world_size}
    return " and ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
