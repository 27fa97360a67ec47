"""A perceptron with the AverageMeter of many repositories, which is printed at each epoch's end."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(29)
x = np.random.randn(60, 4)
y = np.sign(x @ np.array([1.0, -2.0, 0.5, 1.5]))


class AverageMeter:
    """Computes and stores the average and current value"""

    def __init__(self, name, fmt=":f"):
        self.name = name
        self.fmt = fmt
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def state_dict(self):
        return {"val": self.val, "avg": self.avg, "sum": self.sum, "count": self.count}

    def load_state_dict(self, state):
        self.__dict__.update(state)

    def __str__(self):
        fmtstr = "{name} {val" + self.fmt + "} ({avg" + self.fmt + "})"
        return fmtstr.format(**self.__dict__)


class Perceptron:
    versions = {}
    topology = {}
    w = np.zeros(4)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


model = Perceptron()
losses = AverageMeter("Loss", ":.4e")
with FilesRun(model, directory="checkpoints", state={"losses": losses}) as run:
    for epoch in run.epochs(4):
        losses.reset()
        for i in run.range(6):
            xb, yb = x[i * 10 : i * 10 + 10], y[i * 10 : i * 10 + 10]
            margin = yb * (xb @ model.w)
            losses.update(float(np.maximum(0, 1 - margin).mean()), len(xb))
            model.w += 0.1 * (yb[margin < 1, None] * xb[margin < 1]).sum(axis=0)
            run.step_done(loss=losses.val)
        print(f"epoch {epoch}: {losses}")

print(f"{losses} {model.w.sum():.12f}")
