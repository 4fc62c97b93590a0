"""Prediction of what a workload costs, under its public name: see `dynastate.operations.prediction`."""

from dynastate.operations.prediction import Prediction, Workload, predict

__all__ = ["Prediction", "Workload", "predict"]
