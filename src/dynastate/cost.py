"""Prediction of what a workload costs, under its public name: see `dynastate.operations.cost.prediction`."""

from dynastate.operations.cost.prediction import Prediction, Workload, predict

__all__ = ["Prediction", "Workload", "predict"]
