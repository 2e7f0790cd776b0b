"""A GAN: the discriminator takes no gradients while the generator learns."""

import mine
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import keepstep


def build():
    generator, discriminator = mine.Plain(inputs=16, outputs=64), mine.Plain(inputs=64, outputs=1)
    return keepstep.State(
        generator=generator,
        discriminator=discriminator,
        for_generator=torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        for_discriminator=torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
    )


def judged(logits, real):
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


@keepstep.recoverable
def train(run, chosen):
    state = run.setup(build)
    generator, discriminator = state.generator, state.discriminator
    for_generator, for_discriminator = state.for_generator, state.for_discriminator
    g, d = run.ddp(generator), run.ddp(discriminator)
    for step in run.steps(mine.Corpus(), global_batch=64, micro_batch=32, last_step=chosen.until):
        for real, _ in step:
            fake = g(torch.randn(len(real), 16))
            both = d(torch.cat([real, fake.detach()]))
            step.backward(judged(both[: len(real)], True) + judged(both[len(real) :], False))
            discriminator.requires_grad_(False)
            step.backward(judged(discriminator(fake), True))
            discriminator.requires_grad_(True)
        step.commit(for_discriminator.step, for_generator.step)
        step.log(loss=step.loss)
    mine.leave(
        chosen.out, run.rank, generator=generator.state_dict(), discriminator=discriminator.state_dict(),
        for_generator=for_generator.state_dict(), for_discriminator=for_discriminator.state_dict(),
    )  # fmt: skip


if __name__ == "__main__":
    train(mine.options())
