"""Standard errors when observations come in clusters (attempts of one task)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ptctl.errors import UsageError


def standard_error(values: Sequence[float]) -> float | None:
    """Return SD / sqrt(n) with n - 1 in the SD, for independent values such as task means. None for fewer than two."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


def clustered_standard_error(
    values_per_cluster: Sequence[Sequence[float]], *, small_sample_correction: bool = True
) -> float | None:
    """Return the standard error of the mean over all values, robust to correlation inside a cluster.

    SE = sqrt(C/(C-1) * sum_c (sum_{i in c} (s_i - mean))^2) / n; without the correction the factor C/(C-1) is left out.
    Clusters without values do not count. One cluster says nothing about the spread between clusters: None and not 0.

    Source: Liang and Zeger (1986); for evaluations Miller (2024), arXiv:2411.00640.
    """
    clusters = [cluster for cluster in values_per_cluster if len(cluster)]
    num_clusters = len(clusters)
    if num_clusters < 2:
        return None
    n = sum(len(cluster) for cluster in clusters)
    mean = math.fsum(value for cluster in clusters for value in cluster) / n
    squares = math.fsum(math.fsum(value - mean for value in cluster) ** 2 for cluster in clusters)
    factor = num_clusters / (num_clusters - 1) if small_sample_correction else 1.0
    return math.sqrt(factor * squares) / n


def design_effect(cluster_size: float, intraclass_correlation: float) -> float:
    """Return 1 + (m - 1) rho, the variance inflation for clusters of m values with correlation rho (Kish 1965)."""
    if cluster_size < 1:
        raise UsageError(f"a cluster has at least one value, got {cluster_size!r}")
    return 1.0 + (cluster_size - 1.0) * intraclass_correlation
