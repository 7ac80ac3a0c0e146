"""Statistics of an evaluation: intervals, paired tests, multiplicity and power, on tasks as clusters.

Everything is a pure function of counts or task means; nothing here reads a file. The modules:

    distributions   normal and Student t
    rates           success rates, Wilson intervals with an effective size, coverage
    attempts        pass@k and pass^k
    clusters        standard errors of clustered values
    paired          candidate against baseline: Student t, McNemar
    sign_flip       candidate against baseline: the gate's test
    multiplicity    Holm, Benjamini-Hochberg
    power           minimum detectable effect, tasks and attempts that would settle it
    agreement       a judge against humans or rules
"""

from __future__ import annotations

from ptctl.stats.agreement import Confusion, rogan_gladen
from ptctl.stats.attempts import PassRate, mean_pass_at_k, mean_pass_hat_k, pass_at_k, pass_hat_k
from ptctl.stats.clusters import clustered_standard_error, design_effect, standard_error
from ptctl.stats.distributions import (
    incomplete_beta,
    normal_quantile,
    student_t_quantile,
    student_t_sf,
    two_sided_z,
)
from ptctl.stats.multiplicity import benjamini_hochberg, holm
from ptctl.stats.paired import McNemarTest, PairedDifference, mcnemar, paired_difference, task_differences
from ptctl.stats.power import (
    PairedVariance,
    estimate_variance,
    mcnemar_detectable_effect,
    minimum_detectable_effect,
    power_z,
    required_attempts,
    required_tasks,
)
from ptctl.stats.rates import (
    SUCCESS_TOLERANCE,
    Interval,
    coverage,
    equal_slots,
    exceeds_allowed_drop,
    is_success,
    macro_mean,
    micro_mean,
    rate_interval,
    task_means,
    wilson_interval,
)
from ptctl.stats.sign_flip import DEFAULT_NUM_DRAWS, MAX_ENUMERATED, FlipMethod, SignFlipTest, sign_flip_test

__all__ = [
    "DEFAULT_NUM_DRAWS",
    "MAX_ENUMERATED",
    "SUCCESS_TOLERANCE",
    "Confusion",
    "FlipMethod",
    "Interval",
    "McNemarTest",
    "PairedDifference",
    "PairedVariance",
    "PassRate",
    "SignFlipTest",
    "benjamini_hochberg",
    "clustered_standard_error",
    "coverage",
    "design_effect",
    "equal_slots",
    "estimate_variance",
    "exceeds_allowed_drop",
    "holm",
    "incomplete_beta",
    "is_success",
    "macro_mean",
    "mcnemar",
    "mcnemar_detectable_effect",
    "mean_pass_at_k",
    "mean_pass_hat_k",
    "micro_mean",
    "minimum_detectable_effect",
    "normal_quantile",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "power_z",
    "rate_interval",
    "required_attempts",
    "required_tasks",
    "rogan_gladen",
    "sign_flip_test",
    "standard_error",
    "student_t_quantile",
    "student_t_sf",
    "task_differences",
    "task_means",
    "two_sided_z",
    "wilson_interval",
]
