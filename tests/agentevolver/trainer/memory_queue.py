"""TransferQueue in memory."""

import copy

import torch
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta


class Queue:
    """Its key-value interface, tags as it keeps them, for one partition."""

    def __init__(self):
        self.rows, self.tags = {}, {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        for i, key in enumerate(keys):
            self.tags.setdefault(key, {}).update(copy.deepcopy(tags[i]) if tags is not None else {})
        for name in [] if fields is None else fields.keys():
            values = fields[name].unbind() if isinstance(fields[name], torch.Tensor) else list(fields[name])
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = (
                    value if isinstance(value, torch.Tensor) else getattr(value, "data", value)
                )
        names = set.intersection(*(set(self.rows[key]) for key in keys))
        return KVBatchMeta(
            keys=list(keys), tags=[self.tags[key] for key in keys], partition_id=partition_id, fields=sorted(names)
        )

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        names = [name for name in select_fields or self.rows[keys[0]] if all(name in self.rows[key] for key in keys)]
        return TensorDict(
            {name: column([self.rows[key][name] for key in keys]) for name in names}, batch_size=[len(keys)]
        )


def column(values):
    if not isinstance(values[0], torch.Tensor):
        return NonTensorStack(*values)
    return torch.nested.as_nested_tensor(values, layout=torch.jagged) if values[0].dim() else torch.stack(values)
