"""transformers: a Trainer with a small GPT-2, evaluations and checkpoints."""

import os

import common
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Sequences(torch.utils.data.Dataset):
    """Arithmetic sequences modulo 64."""

    def __init__(self, count: int) -> None:
        steps = torch.randint(1, 5, (count, 1), generator=torch.Generator().manual_seed(0))
        self._rows = (torch.arange(32)[None] * steps) % 64

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class Watch(TrainerCallback):
    """Keeps the losses that the Trainer logs."""

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            common.step_ends(state.global_step - 1, logs["loss"])


class EndsWhenReplaced(TrainerCallback):
    """Ends the training some steps after all ranks are there again."""

    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = control.should_training_stop or common.enough(state.global_step)


def main() -> None:
    set_seed(0)
    shape = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.1, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(shape)
    arguments = TrainingArguments(
        output_dir=str(common.REPORTS / "out"),
        use_cpu=True,
        per_device_train_batch_size=8,
        max_steps=-1 if common.UNTIL_REPLACED else common.STEPS,
        num_train_epochs=10_000,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="steps",
        save_steps=common.STEPS,
        report_to=[],
        disable_tqdm=True,
        learning_rate=1e-3,
        ddp_backend="gloo",
    )
    trainer = Trainer(model, arguments, train_dataset=Sequences(512), eval_dataset=Sequences(32), callbacks=[Watch()])
    if common.UNTIL_REPLACED:
        trainer.add_callback(EndsWhenReplaced())
    if common.ADAPTED:
        from pccl.integrations.transformers import ElasticCallback

        class Admit(ElasticCallback):
            def sync(self):
                changed = super().sync()
                common.admit_newcomer(trainer.state.global_step, super().sync)
                return changed

        trainer.add_callback(Admit(trainer))
    trainer.train()
    evaluation = trainer.evaluate()["eval_loss"]
    saved = sorted(os.listdir(arguments.output_dir)) if os.path.isdir(arguments.output_dir) else []
    common.finish(trainer.model, evaluation=evaluation, saved=saved)


if __name__ == "__main__":
    main()
