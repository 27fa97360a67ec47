"""A trainer in the manner of Hugging Face: arguments, a state, callbacks, gradient accumulation, a linear schedule."""

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker.torch

worker.torch.prepare(42)


@dataclass
class TrainingArguments:
    num_train_epochs: int = 3
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 3
    learning_rate: float = 5e-3
    warmup_steps: int = 4
    max_grad_norm: float = 1.0
    logging_steps: int = 3


@dataclass
class TrainerState:
    epoch: float = 0.0
    global_step: int = 0
    max_steps: int = 0
    log_history: list = field(default_factory=list)
    best_metric: float = None

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class TrainerControl:
    should_log = False
    should_training_stop = False


class DefaultFlowCallback:
    def on_step_end(self, args, state, control):
        control.should_log = state.global_step % args.logging_steps == 0


class LabelSmoothingCallback:
    """Lowers the smoothing whenever the loss of a log falls."""

    def __init__(self):
        self.last = None

    def state_dict(self):
        return {"last": self.last}

    def load_state_dict(self, state):
        self.last = state["last"]

    def on_log(self, args, state, control, trainer):
        loss = state.log_history[-1]["loss"]
        if self.last is not None and loss < self.last:
            trainer.smoothing *= 0.8
        self.last = loss


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.model, self.args, self.train_dataset = model, args, train_dataset
        self.state, self.control = TrainerState(), TrainerControl()
        self.callbacks = [DefaultFlowCallback(), LabelSmoothingCallback()]
        self.smoothing = 0.2
        self._globalstep_last_logged = 0
        self._total_loss_scalar = 0.0

    def state_dict(self):
        return {name: getattr(self, name) for name in ("smoothing", "_globalstep_last_logged", "_total_loss_scalar")}

    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self, name, value)

    def create_optimizer_and_scheduler(self, steps):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate)

        def lr_lambda(current):
            if current < self.args.warmup_steps:
                return current / max(1, self.args.warmup_steps)
            return max(0.0, (steps - current) / max(1, steps - self.args.warmup_steps))

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lr_lambda)

    def compute_loss(self, model, inputs):
        logits = model(inputs[0])
        return nn.functional.cross_entropy(logits, inputs[1], label_smoothing=self.smoothing)

    def training_step(self, inputs):
        self.model.train()
        loss = self.compute_loss(self.model, inputs) / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.detach()

    def log(self, logs):
        self.state.log_history.append({**logs, "step": self.state.global_step})
        for callback in self.callbacks:
            if hasattr(callback, "on_log"):
                callback.on_log(self.args, self.state, self.control, self)

    def maybe_log(self, tr_loss):
        if self.control.should_log:
            value = tr_loss.item()
            tr_loss -= tr_loss
            self._total_loss_scalar += value
            self.log({"loss": value / (self.state.global_step - self._globalstep_last_logged)})
            self._globalstep_last_logged = self.state.global_step
            self.control.should_log = False

    def train(self):
        args = self.args
        loader = DataLoader(self.train_dataset, batch_size=args.per_device_train_batch_size, shuffle=True)
        per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
        self.state.max_steps = per_epoch * args.num_train_epochs
        self.create_optimizer_and_scheduler(self.state.max_steps)
        self.model.zero_grad()
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.lr_scheduler}
        state = {"trainer": self, "state": self.state, "callback": self.callbacks[1], "tr_loss": torch.tensor(0.0)}
        with worker.torch.Run(**parts, state=state, directory="checkpoints") as run:
            tr_loss = run.state["tr_loss"]
            for epoch in run.epochs(args.num_train_epochs):
                for step, inputs in enumerate(run.batches(loader), run.batch):
                    tr_loss += self.training_step(inputs)
                    if (step + 1) % args.gradient_accumulation_steps == 0 or step + 1 == len(loader):
                        nn.utils.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
                        self.optimizer.step()
                        self.lr_scheduler.step()
                        self.model.zero_grad()
                        self.state.global_step += 1
                        self.state.epoch = epoch + (step + 1) / len(loader)
                        for callback in self.callbacks:
                            if hasattr(callback, "on_step_end"):
                                callback.on_step_end(args, self.state, self.control)
                        self.maybe_log(tr_loss)
                        run.step_done()
        return self._total_loss_scalar + tr_loss.item()


g = torch.Generator().manual_seed(0)
x = torch.randn(44, 6, generator=g)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
trainer = Trainer(model, TrainingArguments(), dataset)
print(f"{trainer.train():.8f} {trainer.smoothing} {trainer.state.global_step} {len(trainer.state.log_history)}")
