"""Flushes that clients ask for: what became of one, and one before an end that can wait."""

from supervisor.core.program import events
from supervisor.core.program.facts import UP, State
from supervisor.protocol.wire.messages import Committed, SaveFailed
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage


def flush_answer(runner: Runner, flush_id: int) -> Committed | SaveFailed | None:
    """What became of a flush: a commit or a failure, or None while it is still waited for."""
    if flush_id in runner.requests.flush_answers:
        return runner.requests.flush_answers[flush_id]
    if runner.flush is not None and runner.flush.id == flush_id:
        return None
    policy, notice = runner.facts.policy, runner.facts.notice
    limit = f"within {policy.flush_timeout:g} s (flush_timeout)" if notice is None else "in time"
    why = limit if runner.state is State.RUNNING else f"and the program is {runner.state} now"
    return SaveFailed(runner.attempt, 0, f"no checkpoint came {why}", (flush_id,))


async def save_and_train_on(runner: Runner, reason: str) -> str | None:
    """Before an end that can wait: has a job that trains save, and train on. Returns why steps would be lost.

    None if nothing would be: it has saved, or nothing of it trains.
    """
    if runner.config.job is None:
        return None
    await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)
    await runner.wait_until(lambda: None if runner.state is State.ADOPTING else True)
    attempt = runner.attempt
    if not _trains_on(runner, attempt) or runner.facts.current.done_reported:
        return None
    runner.post(events.FlushRequested(reason))
    if runner.flush is None:
        return None
    flush_id = runner.flush.id
    answer: Committed | SaveFailed = await runner.wait_until(lambda: flush_answer(runner, flush_id))
    if isinstance(answer, Committed) or not _trains_on(runner, attempt):
        return None
    came = flush_id in runner.requests.flush_answers
    return f"the save failed: {answer.error}" if came else answer.error


def _trains_on(runner: Runner, attempt: int) -> bool:
    is_training = runner.state in UP
    return is_training and runner.attempt == attempt and not runner.is_stopping
