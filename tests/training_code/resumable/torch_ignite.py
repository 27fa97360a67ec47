"""Ignite's MNIST example: a trainer and an evaluator from its factories, metrics, handlers; the loops are Ignite's."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from worker import torch as stepkeeper

stepkeeper.prepare(0)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
train_loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=100, shuffle=True)
val_loader = DataLoader(TensorDataset(images[1400:], labels[1400:]), batch_size=200)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion)
val_metrics = {"accuracy": Accuracy(), "nll": Loss(criterion)}
evaluator = create_supervised_evaluator(model, metrics=val_metrics)


@trainer.on(Events.ITERATION_COMPLETED)
def log_training_loss(engine):
    if engine.state.iteration % 10 == 0:
        print(f"Epoch[{engine.state.epoch}] Iteration[{engine.state.iteration}] Loss: {engine.state.output:.2f}")
    run.step_done(loss=engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def log_validation_results(engine):
    evaluator.run(val_loader)
    metrics = evaluator.state.metrics
    print(f"Avg accuracy: {metrics['accuracy']:.2f} Avg loss: {metrics['nll']:.2f}")
    scheduler.step(metrics["nll"])


parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "trainer": trainer}
with stepkeeper.Run(**parts, leave_out=["should_exit", "should_terminate_single_epoch"]) as run:
    for epoch in run.epochs(4):
        trainer.run(run.batches(train_loader), max_epochs=1, epoch_length=len(train_loader))
