"""The models of ``make bench-models``: as large as they are used, batches as two cores allow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.language import Picked
from models.vision import Bottleneck, Mixer

MODES = ("inference", "training")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Task:
    """A model with a batch.

    Attributes:
        module: With random weights; takes the batch by name, returns logits.
        batch: Its arguments.
        labels: Classes, one for each row of logits.
        what: Its size, in words.
        optimizer: Makes the optimizer of a training step.
    """

    module: nn.Module
    batch: dict[str, torch.Tensor]
    labels: torch.Tensor
    what: str
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(logits.flatten(0, -2).float(), self.labels.flatten())


def _adamw(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)


class Loss(nn.Module):
    """A model and its loss: what a training step compiles."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.module = task.module
        self.loss = task.loss

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.loss(self.module(**batch))


def gpt2(training: bool) -> Task:
    """GPT-2 small; a training step has 4 of the 12 layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    layers = 4 if training else 12
    config = GPT2Config(
        n_layer=layers, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    ids = torch.randint(0, config.vocab_size, (1, 128))
    module = Picked(GPT2LMHeadModel(config), "logits")
    labels = torch.randint(0, config.vocab_size, (1, 128))
    return Task(module, {"input_ids": ids}, labels, f"{layers} layers, 1 x 128", _adamw)


def bert(training: bool) -> Task:
    """BERT base; a training step has 4 of the 12 layers."""
    from transformers import BertConfig, BertForMaskedLM

    layers = 4 if training else 12
    config = BertConfig(
        num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    ids = torch.randint(0, config.vocab_size, (1, 128))
    mask = torch.ones((1, 128), dtype=torch.int64)
    mask[0, 112:] = 0
    module = Picked(BertForMaskedLM(config), "logits")
    labels = torch.randint(0, config.vocab_size, (1, 128))
    batch = {"input_ids": ids, "attention_mask": mask}
    return Task(module, batch, labels, f"{layers} layers, 1 x 128", _adamw)


class _Images(nn.Sequential):
    """A network of layers that takes its batch by name."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return super().forward(images)


def resnet(training: bool) -> Task:
    """ResNet-50."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            layers.append(Bottleneck(channels, 64 << stage, 2 if stage and not index else 1))
            channels = 256 << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    module = _Images(*layers)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):  # as after some training: not the identity
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.1)
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
    images = torch.randn(4, 3, 224, 224)
    return Task(module, {"images": images}, torch.randint(0, 1000, (4,)), "4 x 224 x 224", _sgd)


class _ByName(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.inner(images)


def mixer(training: bool) -> Task:
    """MLP-Mixer-B/16; a training step has 4 of the 12 blocks."""
    depth = 4 if training else 12
    module = _ByName(Mixer(224, 16, 768, depth, 1000))
    images = torch.randn(2, 3, 224, 224)
    what = f"{depth} blocks, 2 x 224 x 224"
    return Task(module, {"images": images}, torch.randint(0, 1000, (2,)), what, _adamw)


TASKS: dict[str, Callable[[bool], Task]] = {
    "gpt2": gpt2,
    "bert": bert,
    "resnet50": resnet,
    "mixer": mixer,
}


def build(name: str, mode: str) -> Task:
    """Build a task, the same at every call."""
    torch.manual_seed(0)
    task = TASKS[name](mode == "training")
    task.module.train(mode == "training")
    return task


def in_double(task: Task) -> Task:
    """Return the same task in float64."""
    batch = {n: t.double() if t.is_floating_point() else t for n, t in task.batch.items()}
    module = copy.deepcopy(task.module).double()
    return Task(module, batch, task.labels, task.what, task.optimizer)


def in_bfloat16(task: Task) -> Task:
    """Return the same task with weights and inputs in bfloat16."""
    batch = {n: t.bfloat16() if t.is_floating_point() else t for n, t in task.batch.items()}
    module = copy.deepcopy(task.module).bfloat16()
    return Task(module, batch, task.labels, task.what, task.optimizer)


def tensors_of(module: nn.Module, result: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the result, the gradients and the buffers by name, as copies."""
    found: dict[str, Any] = {"result": result}
    found |= {f"grad of {n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    found |= {f"buffer {n}": value for n, value in module.named_buffers()}
    return {name: value.detach().clone() for name, value in found.items()}
