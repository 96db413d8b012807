"""The losses of a choice that one token makes, and what came of it: logits of the last position enter, a loss for each example leaves.

All of them are of the model's own distribution over its whole vocabulary, not of one over the options alone (SCoT eq. 4 and its published
code): that the next token is an option at all is learnt, too.
"""

import torch
from torch import Tensor

from pipeline.training.lora.measures import CLASS_1, CLASS_2, SCORED

PADDING = -1
"""The id of an option that an example does not have, as others in its batch do."""


def option_logprobs(logits: Tensor, option_ids: Tensor) -> Tensor:
    """Natural log probabilities of the options: `logits` are (examples, vocabulary), `option_ids` and what leaves (examples, options).

    That of an option that is `PADDING` is -inf.
    """
    every = torch.log_softmax(logits.float(), dim=-1)
    return every.gather(1, option_ids.clamp(min=0)).masked_fill(option_ids == PADDING, -torch.inf)


def least(logprobs: Tensor, right: Tensor) -> Tensor:
    """The least of the cross entropies over all right options (SCoT 3.4): of (examples, options) each, one loss for each example.

    Only the right option that is likeliest already is made likelier.
    """
    return -logprobs.masked_fill(~right, -torch.inf).amax(dim=1)


def summed(logprobs: Tensor, right: Tensor) -> Tensor:
    """Minus the log of the summed probability of all right options; shapes as those of `least`, which it is never above."""
    return -logprobs.masked_fill(~right, -torch.inf).logsumexp(dim=1)


LOSSES = {"least": least, "sum": summed}
"""By the name that a config has for them."""


def outcomes(loss: Tensor, logprobs: Tensor, right: Tensor, none: Tensor) -> Tensor:
    """What came of each example, (examples, 5), with the columns of `measures`.

    `none` (examples) is the index of the option that rejects all, -1 where there is none. The likeliest option is chosen, as in serving.
    """
    rejects = torch.nn.functional.one_hot(none.clamp(min=0), right.shape[1]).bool() & (none >= 0)[:, None]
    accepting = right & ~rejects
    is_class_1 = accepting.any(dim=1)
    expected = torch.where(is_class_1[:, None], accepting, right)
    chosen = logprobs.argmax(dim=1, keepdim=True)
    real = (logprobs > -torch.inf).sum(dim=1)
    classes = torch.where(is_class_1, CLASS_1, CLASS_2).masked_fill(none < 0, SCORED)
    columns = (loss, logprobs.logsumexp(dim=1).exp(), expected.gather(1, chosen)[:, 0], classes, expected.sum(dim=1) / real)
    return torch.stack([column.float() for column in columns], dim=1)
