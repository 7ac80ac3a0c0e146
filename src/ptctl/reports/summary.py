"""The parts that the terminal and Markdown say in the same words."""

from __future__ import annotations

from ptctl.evaluation.report import Cost, Paired, Process, Report, Success
from ptctl.reports import text


def headline(report: Report) -> str:
    """Verdict and exit code."""
    line = f"{report.outcome.value} (exit {int(report.exit_code)})"
    worsened = () if report.paired is None else report.paired.worsened
    if len(worsened) == 1:
        return f"{line}: 1 stratum got worse"
    return f"{line}: {len(worsened)} strata got worse" if worsened else line


def success_line(success: Success) -> str:
    """The rate, and what it rests on."""
    where = (
        f"{success.n_success} of {success.n_scored} scored slots passed, {success.n_scored} of {success.n_slots} slots "
        f"scored (coverage {text.percent(success.coverage)}), {success.n_scored_tasks} of {success.n_tasks} tasks"
    )
    if success.rate is None:
        return f"No success rate: {where}."
    bounds = f"[{text.rate(success.ci_low)}, {text.rate(success.ci_high)}]"
    return f"Success {text.rate(success.rate)} {bounds}: {where}."


def paired_line(paired: Paired) -> str:
    """The overall difference, its test, and how many tasks moved."""
    difference = paired.overall.difference
    if difference.difference is None:
        return "no task is scored on both sides."
    how = "exact" if difference.method == "exact" else "by draws"
    return (
        f"{text.change(difference.difference)} [{text.signed_interval(difference.ci_low, difference.ci_high)}], "
        f"p {text.p_value(difference.p_value)} (sign-flip, {how}), {paired.overall.verdict.value}; "
        f"{difference.improved} tasks better, {difference.worsened} worse, of {difference.n_tasks}."
    )


def process_lines(process: Process) -> dict[str, str]:
    """Name → value of each process metric. A name that only one side has counts 0 on the other."""
    lines = {
        "trajectories": text.number(process.num_trajectories),
        "retries": text.number(process.num_retries),
        "turns a trajectory": text.number(process.turns_per_trajectory),
        "tool calls a trajectory": text.number(process.tool_calls_per_trajectory),
    }
    lines |= {
        f"tool calls {level}": f"{text.percent(reached.share)} ({reached.count})"
        for level, reached in process.tool_calls.items()
    }
    lines["truncated"] = f"{text.percent(process.truncated.share)} ({process.truncated.count})"
    lines |= {
        f"stopped: {text.plain(reason)}": f"{text.percent(part.share)} ({part.count})"
        for reason, part in process.stop_reasons.items()
    }
    errors = process.infrastructure_errors
    lines["infrastructure errors"] = f"{text.percent(errors.share)} ({errors.count})"
    lines |= {f"unscored: {text.plain(reason)}": str(count) for reason, count in process.unscored.items()}
    lines |= {f"judged by {text.plain(judge)}": str(count) for judge, count in process.judged_by.items()}
    return lines


def cost_lines(cost: Cost) -> dict[str, str]:
    """Name → value of each cost."""
    return {
        "tokens a task": text.number(cost.tokens_per_task),
        "tokens a success": text.number(cost.tokens_per_success),
        "prompt tokens": text.number(cost.prompt_tokens),
        "from the cache": text.percent(cost.cached_share),
        "completion tokens": text.number(cost.completion_tokens),
        "engine": text.seconds(cost.engine_s),
        "waiting for the engine": text.seconds(cost.queue_s),
        "environment": text.seconds(cost.environment_s),
        "sandbox": text.seconds(cost.sandbox_s),
        "verification": text.seconds(cost.verify_s),
        "wall, all trajectories": text.seconds(cost.wall_s),
        "first start to last end": text.seconds(cost.elapsed_s),
    }
