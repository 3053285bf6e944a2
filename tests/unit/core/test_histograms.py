"""Histograms, and the writes of a journal."""

from __future__ import annotations

from isthmus.core.histograms import Histogram, WriteMetrics


def test_an_observation_falls_into_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(seconds)
    assert histogram.buckets == [2, 2, 1]
    assert (histogram.count, histogram.sum) == (5, 8.6)


def test_the_lag_is_the_age_of_the_oldest_write() -> None:
    now = [10.0]
    figures = WriteMetrics(lambda: now[0])
    assert (figures.pending, figures.lag_seconds) == (0, 0.0)
    figures.begin()
    now[0] = 11.0
    figures.begin()
    now[0] = 13.0
    assert (figures.pending, figures.lag_seconds) == (2, 3.0)
    figures.end(["kept"])
    assert (figures.pending, figures.lag_seconds) == (1, 2.0)
    figures.end(["refused"])
    assert figures.results == {"kept": 1, "conflict": 0, "refused": 1, "unknown": 0}
    assert (figures.pending, figures.seconds.count, figures.seconds.sum) == (0, 2, 5.0)
