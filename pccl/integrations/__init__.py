"""Adapters for training frameworks: each module needs the framework that it is named after, and imports it when it is imported.

    pccl.integrations.accelerate      follow(accelerator)
    pccl.integrations.transformers    ElasticCallback(trainer) for transformers.Trainer
    pccl.integrations.lightning       ElasticCallback() for lightning.Trainer

Frameworks read their rank and the world size once. These adapters correct both after each change of the membership. The function
`adapt` of these, of `torch` and of `deepspeed` is what `pccl.distributed.run --adapt` calls.
"""
