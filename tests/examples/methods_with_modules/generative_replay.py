"""Text that the previous model writes, beside the new domain's (LAMOL, Sun et al. 2020, arXiv
1909.03329).
"""

from dataclasses import dataclass

from benchmark.training.method import LifelongMethod, PartOfStage, Phase, Source


@dataclass
class GenerativeReplay(LifelongMethod):
    title = "Generative replay"
    causal_only = True

    replay: PartOfStage = 0.25  # share of the rows that are generated

    def start_stage(self, model, stage):
        self.writer = None if stage.first else stage.previous().to(next(model.parameters()).device)
        return model

    def phases(self, stage):
        if stage.first:
            return [Phase("adapt")]
        new, own = (
            Source("new", 1 - self.replay, 1 - self.replay),
            Source("own", self.replay, self.replay),
        )
        return [Phase("adapt", sources=(new, own))]

    def make_sequences(self, shape, generator):
        import torch

        rows, length = shape
        place = {"device": generator.device, "dtype": torch.long}
        tokens = torch.full((rows, 1), self.writer.vocabulary.special.bos, **place)
        domains = torch.full((rows,), len(self.writer.vocabulary.domains) - 1, **place)
        for column in range(length):
            last = torch.full((rows, 1), column, **place)
            odds = self.writer(tokens, domains, last)[:, 0].softmax(-1)
            tokens = torch.cat([tokens, odds.multinomial(1, generator=generator)], dim=1)
        return tokens[:, 1:]
