"""Calls the training loops of libraries in FOLDER, and writes them as stepkeeper's messages say; prints JSON."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from worker import torch as stepkeeper

FOLDER = Path(sys.argv[1])


class Examples(Dataset):  # type: ignore[type-arg]
    """Examples as Trainer takes them."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.arange(4.0) * index / 20, "labels": torch.tensor(index % 2)}


class Classifier(nn.Module):
    """A model that gives its loss, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Module(lightning.LightningModule):
    """A model of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Classifier()

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(*batch)["loss"]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def make_trainer(model: nn.Module, *callbacks: Any) -> Trainer:
    settings = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
    arguments = TrainingArguments(str(FOLDER / "out"), per_device_train_batch_size=5, num_train_epochs=2, **settings)
    return Trainer(model, arguments, train_dataset=Examples(), callbacks=list(callbacks))


def make_lightning_trainer() -> lightning.Trainer:
    settings: dict[str, Any] = {"enable_checkpointing": False, "enable_progress_bar": False, "logger": False}
    return lightning.Trainer(max_epochs=2, enable_model_summary=False, default_root_dir=FOLDER, **settings)


def data() -> DataLoader[Any]:
    inputs = torch.arange(88.0).reshape(22, 4) / 88
    return DataLoader(TensorDataset(inputs, torch.arange(22) % 2), 5, shuffle=True)


def called_in_the_block() -> str:
    """`trainer.train()` where the run can see it, before anything is trained."""
    model = Classifier()
    trainer = make_trainer(model)
    try:
        with stepkeeper.Run(model=model, directory=FOLDER / "a"):
            trainer.train()
    except RuntimeError as error:
        return str(error)
    return ""


def called_elsewhere() -> str:
    """`train` in a function, with `step_done` in a callback."""
    model = Classifier()

    class Counting(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            run.step_done()

    try:
        with stepkeeper.Run(model=model, directory=FOLDER / "b") as run:
            _train(make_trainer(model, Counting()))
    except RuntimeError as error:
        return str(error)
    return ""


def _train(trainer: Trainer) -> None:
    trainer.train()


def fitted_in_the_block() -> str:
    """Lightning's `fit` where the run can see it."""
    model, trainer = Module(), make_lightning_trainer()
    try:
        with stepkeeper.Run(model=model, directory=FOLDER / "c") as run:
            trainer.fit(model, run.batches(data()))
    except RuntimeError as error:
        return str(error)
    return ""


def fitted_elsewhere() -> str:
    """`fit` in a function, with `step_done` in a hook of the model."""

    class Counting(Module):
        def on_train_batch_end(self, *_: Any) -> None:
            run.step_done()

    try:
        with stepkeeper.Run(model=(model := Counting()), directory=FOLDER / "d") as run:
            _fit(make_lightning_trainer(), model)
    except RuntimeError as error:
        return str(error)
    return ""


def _fit(trainer: Any, model: Any) -> None:
    trainer.fit(model, data())


def loop_of_transformers(end: int) -> list[float]:
    """The loop in place of Trainer's, which ends at a step."""
    stepkeeper.prepare(3)
    model = Classifier()
    loader = make_trainer(model).get_train_dataloader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    folder = FOLDER / f"transformers{SUFFIX[0]}"
    with stepkeeper.Run(model=model, optimizer=optimizer, directory=folder, interval="1 steps") as run:
        for _ in run.epochs(3):
            for batch in run.batches(loader):
                loss = model(**batch)["loss"]
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step_done(loss=loss)
                if run.step == end:
                    raise KeyboardInterrupt
    return [value.item() for tensor in model.parameters() for value in tensor.flatten()]


def loop_of_lightning(end: int) -> list[float]:
    """The loop in place of Lightning's, which ends at a step."""
    stepkeeper.prepare(3)
    model, loader = Module(), data()
    optimizer = model.configure_optimizers()
    folder = FOLDER / f"lightning{SUFFIX[0]}"
    with stepkeeper.Run(model=model, optimizer=optimizer, directory=folder, interval="1 steps") as run:
        for _ in run.epochs(3):
            for number, batch in enumerate(run.batches(loader), run.batch):
                loss = model.training_step(batch, number)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.step_done(loss=loss)
                if run.step == end:
                    raise KeyboardInterrupt
    return [value.item() for tensor in model.parameters() for value in tensor.flatten()]


SUFFIX = [""]


def whole_and_parts(loop: Callable[[int], list[float]]) -> dict[str, Any]:
    """The weights after an undisturbed run, and after one that was broken off at some steps."""
    SUFFIX[0] = " whole"
    whole = loop(-1)
    SUFFIX[0] = " parts"
    for end in (2, 5, 9):
        try:
            loop(end)
        except KeyboardInterrupt:
            continue
    return {"whole": whole, "parts": loop(-1)}


if __name__ == "__main__":
    refused = called_in_the_block, called_elsewhere, fitted_in_the_block, fitted_elsewhere
    texts = {each.__name__: each() for each in refused}
    loops = {each.__name__: whole_and_parts(each) for each in (loop_of_transformers, loop_of_lightning)}
    print(json.dumps({"texts": texts, "loops": loops}))
