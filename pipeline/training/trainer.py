"""The training itself, by TRL and PEFT: examples enter; checkpoints leave as it goes, and at the end the adapter with its log.

Both trainers are `SFTTrainer`s. The draft's uses its loss as it is. The target's has its own loss, of one position alone, and asks the
model for the logits of that position only, so that a prompt of several whole thoughts does not cost a vocabulary for each of its tokens.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import LoraConfig
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, EvalPrediction, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from datasets import Dataset
from pipeline.errors import GraphError, RunError, UsageError, boundary, did_you_mean
from pipeline.training.config import DraftConfig, SelectConfig, TrainConfig
from pipeline.training.data import TrainingData

Batch: TypeAlias = dict[str, Tensor]
Tell: TypeAlias = Callable[[str], object]
"""Receives lines for the user."""
STATE = "trainer_state.json"
"""The steps and the log: the last file of a checkpoint."""
LOG_EVERY = 10
"""Steps between two lines about the loss. Published code."""
PADDING = -1
"""The id of an option that an example does not have, as others in its batch do."""


def train(config: TrainConfig, model: str, base_name: str, data: TrainingData, *, resume: bool, tell: Tell) -> None:
    """Train `model`, a folder or hub name, and leave the adapter in the folder of `config`, where it is one of `base_name`.

    With `resume` it continues from the last checkpoint there, if there is one. Raises `UsageError` for a model that cannot be loaded or is
    none that TRL or PEFT takes; `RunError` where memory runs out or the loss is lost.
    """
    logging.disable_progress_bar()
    folder = Path(str(config.output))
    checkpoint = _last_checkpoint(folder) if resume else None
    precision = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    arguments = _arguments(config, data, precision)
    arguments.eval_on_start = bool(data.validation) and checkpoint is None
    if checkpoint is not None:
        tell(f"continuing from step {checkpoint.name.rpartition('-')[2]}")
    tell(f"{len(data.train):,} examples to train on, {len(data.validation):,} held back for validation; loading {config.model}")
    loaded = _model(config, model, precision)
    with boundary(UsageError, f"{config.model}: cannot be trained with these settings", foreign=ValueError):
        trainer = _trainer(config, model, loaded, arguments, data)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Lines(tell))
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except torch.OutOfMemoryError as error:
        remedy = "lower batch_size, set gradient_checkpointing: true, lower max_length, or use more GPUs, and start again"
        raise RunError(f"the GPU's memory is used up; {remedy}") from error
    trainer.save_model()
    said = json.loads((folder / "adapter_config.json").read_text()) | {"base_model_name_or_path": base_name}
    (folder / "adapter_config.json").write_text(json.dumps(said, indent=2))
    trainer.save_state()


def _last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose last file was written; None without one."""
    found = {int(path.parent.name.rpartition("-")[2]): path.parent for path in folder.glob(f"checkpoint-*/{STATE}")}
    return found[max(found)] if found else None


def option_logprobs(logits: Tensor, option_ids: Tensor) -> Tensor:
    """Natural log probabilities of the options: `logits` are (examples, vocabulary), `option_ids` and the result (examples, options).

    They are of the model's distribution over its whole vocabulary (SCoT eq. 4 and its published code): that the next token is an option at
    all is learnt, too. That of an option that is `PADDING` is -inf.
    """
    every = torch.log_softmax(logits.float(), dim=-1)
    return every.gather(1, option_ids.clamp(min=0)).masked_fill(option_ids == PADDING, -torch.inf)


def least(logprobs: Tensor, right: Tensor) -> Tensor:
    """The least of the cross entropies over all right options (SCoT 3.4): of (examples, options) each, one loss for each example.

    Only the right option that is likeliest already is made likelier.
    """
    return -logprobs.masked_fill(~right, -torch.inf).amax(dim=1)


def outcomes(loss: Tensor, logprobs: Tensor, right: Tensor) -> Tensor:
    """The outcome of each example, (examples, 3): its loss, the probability of all options together, and 1 where the likeliest option is
    right, which is chosen in serving."""
    chosen = logprobs.argmax(dim=1, keepdim=True)
    return torch.stack([loss.float(), logprobs.logsumexp(dim=1).exp(), right.gather(1, chosen)[:, 0].float()], dim=1)


def select_figures(prediction: EvalPrediction) -> dict[str, float]:
    """Means of the columns of `outcomes`."""
    return dict(zip(("loss", "mass", "accuracy"), map(float, prediction.predictions.mean(axis=0)), strict=True))


class DraftTrainer(SFTTrainer):
    """Learns completions, with the loss of its base class: the mean cross entropy of their tokens (SCoT eq. 2)."""

    def compute_loss(self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None) -> Tensor:
        # Of a model on several GPUs the base class has its sum on that of the output layer, and divides it by a count on the first one. A
        # number is on none; and the loss goes to the first one, where the trainer adds it up.
        count = None if num_items_in_batch is None else int(num_items_in_batch)
        loss: Tensor = super().compute_loss(model, inputs, num_items_in_batch=count)
        return loss.to(self.args.device)


class SelectTrainer(SFTTrainer):
    """Learns the token that names a right option (SCoT 3.4). Each prompt ends at the last position, which alone has logits."""

    loss_is_scaled_for_ga = False
    """The loss is the mean of a batch: transformers divides it by the number of batches that make a step."""

    def compute_loss(self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        return least(self._logprobs(model, inputs), inputs["right"]).mean()

    def prediction_step(self, model: Any, inputs: Batch, prediction_loss_only: bool, ignore_keys: Any = None) -> tuple[Any, Any, Any]:
        """The predictions are what `select_figures` takes."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            logprobs = self._logprobs(model, inputs)
        loss = least(logprobs, inputs["right"])
        return loss.mean(), outcomes(loss, logprobs, inputs["right"]), inputs["right"][:, 0]

    def _logprobs(self, model: Any, inputs: Batch) -> Tensor:
        """Log probabilities of the options, (examples, options)."""
        asked = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        logits = model(**asked, use_cache=False, logits_to_keep=1).logits
        return option_logprobs(logits[:, -1], inputs["option_ids"])


def collate_choices(examples: Sequence[Mapping[str, Any]]) -> Batch:
    """A batch of choices: prompts padded on the left, so that all of them end at the last position, and options padded on the right."""
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    ids = [torch.tensor(each["input_ids"]) for each in examples]
    mask = pad([torch.ones_like(each) for each in ids], padding_side="left")
    option_ids = pad([torch.tensor(each["option_ids"]) for each in examples], padding_value=PADDING)
    right = torch.zeros_like(option_ids, dtype=torch.bool)
    for place, each in enumerate(examples):
        right[place, each["right"]] = True
    return {
        "input_ids": pad(ids, padding_side="left"),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
        "option_ids": option_ids,
        "right": right,
    }


class _Lines(TrainerCallback):
    """Tells what the trainer logs, and stops where the loss is not a number."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **others: Any) -> None:
        logs = logs or {}
        loss = logs.get("loss", logs.get("eval_loss", 0.0))
        if not math.isfinite(loss):
            remedy = "lower learning_rate, and start again" if state.global_step else "check the weights of the model"
            raise RunError(f"the loss is {loss} at step {state.global_step}; {remedy}")
        told = {name: value for name, value in logs.items() if not name.endswith(("_per_second", "_runtime", "_tokens", "_flos"))}
        figures = (f"{name.replace('eval_', 'validation ').replace('_', ' ')} {value:.4g}" for name, value in told.items())
        self._tell(" · ".join([f"step {state.global_step:,}/{state.max_steps:,}", *figures]))


def _arguments(config: TrainConfig, data: TrainingData, precision: torch.dtype) -> SFTConfig:
    """The settings of the trainer: each default of TRL that would change the data or the numbers is set here."""
    arguments = SFTConfig(
        output_dir=str(config.output),
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        bf16=precision == torch.bfloat16,
        fp16=False,
        gradient_checkpointing=config.gradient_checkpointing,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        num_train_epochs=config.epochs,
        learning_rate=config.learning_rate,
        warmup_steps=0,
        seed=config.seed,
        data_seed=config.seed,
        logging_steps=LOG_EVERY,
        logging_nan_inf_filter=False,
        eval_strategy="epoch" if data.validation else "no",
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    if arguments.n_gpu > 1:  # one model is spread over all of them
        arguments._n_gpu = 1
    return arguments


def _model(config: TrainConfig, name: str, precision: torch.dtype) -> Any:
    """The model, with every one of its weights from its files and every layer of `lora.targets`."""
    spread = "auto" if torch.cuda.device_count() > 1 else None
    with boundary(UsageError, f"{config.model}: cannot be loaded", foreign=(OSError, ValueError, KeyError, ImportError, RuntimeError)):
        model, report = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True, dtype=precision, device_map=spread)
    if missing := sorted(report["missing_keys"]):
        raise UsageError(f"{config.model}: its files lack {len(missing):,} tensors, such as {missing[0]}; copy or download it again")
    # TRL takes the weights of the output layer without what PEFT puts beside them: it cannot be a target.
    head = model.get_output_embeddings()
    modules = {path: module for path, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head}
    linear = {path.rpartition(".")[2] for path in modules}
    if unknown := [target for target in config.lora.targets if target not in linear]:
        what = f"{config.model} has no linear layer `{unknown[0]}` before its output layer"
        raise GraphError("lora.targets", f"{what}; {did_you_mean(unknown[0], linear)}")
    return model


def _trainer(config: TrainConfig, name: str, model: Any, arguments: SFTConfig, data: TrainingData) -> SFTTrainer:
    """The trainer of the config's kind, with the model and its LoRA matrices."""
    lora = config.lora
    common = {
        "model": model,
        "args": arguments,
        "peft_config": LoraConfig(
            task_type="CAUSAL_LM", r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets)
        ),
        "processing_class": AutoTokenizer.from_pretrained(name),
        "train_dataset": Dataset.from_list([*data.train]),
        "eval_dataset": Dataset.from_list([*data.validation]) if data.validation else None,
    }
    if isinstance(config, SelectConfig):
        return SelectTrainer(**common, data_collator=collate_choices, compute_metrics=select_figures)
    assert isinstance(config, DraftConfig)
    collator = DataCollatorForLanguageModeling(pad_token_id=0)  # padding is masked, so that any id will do
    return DraftTrainer(**common, data_collator=collator)
