"""Allocation programs of a mixture of experts in a loop: how many requests a step makes, and of what size, is routed."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

from programs import Free, Request, Runner, construction
from stalloc_accel import _core

KIB = 1 << 10


@dataclass(frozen=True)
class RoutedModel:
    num_layers: int = 3
    num_experts: int = 8
    width: int = 2 * KIB  # bytes a token


def routes(draw: random.Random, model: RoutedModel, tokens: int, share_used: float = 0.9) -> list[list[int]]:
    """How many tokens each expert of each layer gets; an expert without any makes no pass."""
    used = [[draw.random() < share_used for _ in range(model.num_experts)] for _ in range(model.num_layers)]
    return [[draw.randrange(1, max(2, tokens // 3)) if is_used else 0 for is_used in layer] for layer in used]


def is_static(request: Request) -> bool:
    """Whether every step makes it, in a size that the number of tokens foretells. Named so below."""
    return request.name.startswith("static")


def _pass(layer: int, expert: int, count: int, tokens: int, model: RoutedModel) -> list:
    """One expert's forward pass: masks over all tokens, then what its own tokens need."""
    name = f"{layer}.{expert}"
    return [Request(f"one{name}", 512), Request(f"mask{name}", 32 * tokens), Request(f"sum{name}", 512),
            Free(f"one{name}"), Request(f"scan{name}", 21 * KIB), Free(f"scan{name}"), Request(f"index{name}", 16 * count),
            Free(f"mask{name}"), Free(f"sum{name}"), Request(f"in{name}", model.width * count),
            Request(f"up{name}", 3 * model.width * count), Request(f"act{name}", 3 * model.width * count),
            Request(f"out{name}", model.width * count), Free(f"up{name}"), Free(f"out{name}")]


def _pass_back(layer: int, expert: int, model: RoutedModel) -> list:
    name = f"{layer}.{expert}"
    return [Request(f"wgrad{name}", 256 * KIB), Free(f"act{name}"), Request(f"dgrad{name}", 128 * KIB), Free(f"in{name}"),
            Free(f"index{name}"), Free(f"wgrad{name}"), Free(f"dgrad{name}")]


def _attention(layer: int, tokens: int, model: RoutedModel) -> list:
    """What comes before the experts: scratch of many sizes, and what backward needs."""
    step: list = []
    for part, times in enumerate((4, 12, 4, 1, 6, 2, 9, 4)):
        step += [Request(f"static.scratch{layer}.{part}", times * model.width * tokens // 4),
                 Request(f"static.kept{layer}.{part}", times * model.width * tokens // 16), Free(f"static.scratch{layer}.{part}")]
    return step


def _attention_back(layer: int, tokens: int, model: RoutedModel) -> list:
    step: list = []
    for part, times in reversed(list(enumerate((4, 12, 4, 1, 6, 2, 9, 4)))):
        step += [Request(f"static.dscratch{layer}.{part}", times * model.width * tokens // 5), Free(f"static.kept{layer}.{part}"),
                 Free(f"static.dscratch{layer}.{part}")]
    return step


def routed_step(routed: list[list[int]], tokens: int, model: RoutedModel = RoutedModel()) -> list:
    """Forward, a loss over a large vocabulary, backward. Nothing of it outlives the step."""
    step = [Request("static.batch", 32 * tokens), Request("static.hidden", model.width * tokens)]
    for layer, counts in enumerate(routed):
        step += _attention(layer, tokens, model)
        for expert, count in enumerate(counts):
            step += _pass(layer, expert, count, tokens, model) if count else []
        step += [Request(f"static.out{layer}", 5 * model.width * tokens // 4)]
    step += [Request("static.logits", 16 * model.width * tokens), Request("static.loss", 32 * model.width * tokens), Free("static.logits"),
             Request("static.dlogits", 16 * model.width * tokens), Free("static.loss"), Free("static.dlogits")]
    for layer, counts in reversed(list(enumerate(routed))):
        step += [Request(f"static.dout{layer}", 7 * model.width * tokens // 4), Free(f"static.out{layer}")]
        for expert, count in reversed(list(enumerate(counts))):
            step += _pass_back(layer, expert, model) if count else []
        step += [*_attention_back(layer, tokens, model), Free(f"static.dout{layer}")]
    return [*step, Free("static.hidden"), Free("static.batch")]


def checkpointed_step(routed: list[list[int]], tokens: int, model: RoutedModel = RoutedModel()) -> list:
    """As routed_step, but nothing of an expert's pass outlives its layer: backward makes each layer's passes once more."""
    def layer_of(layer: int, phase: str) -> list:
        step: list = []
        for expert, count in enumerate(routed[layer]):
            made = _pass(layer, expert, count, tokens, model) if count else []
            kept = {part.name for part in made if isinstance(part, Request)} - {part.name for part in made if isinstance(part, Free)}
            step += [*made, *(Free(name) for name in sorted(kept))]
        return [dataclasses.replace(part, name=f"{phase}{part.name}") for part in step]
    layers = range(len(routed))
    step = [Request("static.batch", 32 * tokens), Request("static.hidden", model.width * tokens)]
    for layer in layers:
        step += [*_attention(layer, tokens, model), *layer_of(layer, ""), Request(f"static.out{layer}", model.width * tokens)]
    step += [Request("static.logits", 16 * model.width * tokens), Request("static.loss", 32 * model.width * tokens), Free("static.logits"),
             Request("static.dlogits", 16 * model.width * tokens), Free("static.loss"), Free("static.dlogits")]
    for layer in reversed(layers):
        step += [*layer_of(layer, "again"), *_attention_back(layer, tokens, model), Free(f"static.out{layer}")]
    return [*step, Free("static.hidden"), Free("static.batch")]


def random_step(draw: random.Random, model: RoutedModel = RoutedModel(), share_used: float = 0.9, num_streams: int = 1) -> list:
    """A step over a batch of 200 to 400 tokens. Where there are more streams, each request is made on one of them."""
    tokens = draw.randrange(200, 401)
    step = routed_step(routes(draw, model, tokens, share_used), tokens, model)
    return [dataclasses.replace(part, stream=sum(map(ord, part.name)) % num_streams) if isinstance(part, Request) else part
            for part in step]


def recorded(steps: list[list], limit_bytes: int = 2 << 30) -> dict:
    """Construction and these steps, as an engine without a plan records them; at its end all is freed."""
    host = _core.HostEngine(limit_bytes)
    host.engine.start_recording(1 << 18)
    runner = Runner(host)
    runner.run(construction())
    for step in steps:
        runner.run(step)
        host.engine.end_step()
    runner.free_all()
    return host.engine.recorded()
