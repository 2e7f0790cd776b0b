"""What a training epoch has logged so far on this rank, and the metrics of its module, as plain data."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric

_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx",
         "dataloader_idx", "metric_attribute")  # fmt: skip
_VALUES = ("value", "cumulated_batch_size", "_forward_cache", "_computed", "_update_count", "has_reset")
_METRIC = ("_forward_cache", "_computed", "_update_count")


def take_results(results: dict[str, _ResultMetric]) -> dict[str, Any]:
    taken = {}
    for key, each in results.items():
        sync = each.meta.sync
        meta = {name: getattr(each.meta, name) for name in _META} | {"reduce_fx": each.meta.reduce_fx.__name__}
        names = _VALUES if each.is_tensor else (*_METRIC, "has_reset")
        taken[key] = {
            "meta": meta,
            "sync": {"_should": sync.should, "rank_zero_only": sync.rank_zero_only},
            "values": {name: getattr(each, name) for name in names if hasattr(each, name)},
            "is_tensor": each.is_tensor,
        }
    return taken


def put_back_results(results: dict[str, _ResultMetric], taken: dict[str, Any], trainer: Any) -> None:
    results.clear()
    for key, each in taken.items():
        meta = _Metadata(**each["meta"])
        meta.sync = _Sync(fn=trainer.strategy.reduce, **each["sync"])
        metric = _ResultMetric(meta, each["is_tensor"])
        if not each["is_tensor"]:
            metric.value = trainer.lightning_module.get_submodule(meta.metric_attribute)
        for name, value in each["values"].items():
            setattr(metric, name, _copied(value))
        results[key] = metric


def begin_anew(results: dict[str, _ResultMetric], module: torch.nn.Module) -> None:
    """Of what is summed over ranks nothing is counted, as before the epoch's first batch. Which names there are, and
    what is computed already, stays as on other ranks: all of them have the same collectives."""
    for each in results.values():
        if each.is_tensor and each.meta.sync.should:
            has_reset, computed = each.has_reset, each._computed
            each.reset()
            each.has_reset, each._computed = has_reset, computed
    for metric in module.modules():
        if isinstance(metric, Metric):
            kept = {name: getattr(metric, name) for name in ("_computed", "_update_count")}
            metric.reset()
            for name, value in kept.items():
                setattr(metric, name, value)


def take_metrics(module: torch.nn.Module) -> dict[str, Any]:
    """The states of torchmetrics in `module`."""
    return {
        path: {name: getattr(metric, name) for name in (*metric._defaults, *_METRIC)}
        for path, metric in module.named_modules()
        if isinstance(metric, Metric)
    }


def put_back_metrics(module: torch.nn.Module, taken: dict[str, Any]) -> None:
    for path, values in taken.items():
        metric = module.get_submodule(path)
        for name, value in values.items():
            setattr(metric, name, _copied(value))


def _copied(value: Any) -> Any:
    """What is taken may be put back more than once, and metrics change their tensors in place."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copied(each) for each in value] if isinstance(value, list) else value
