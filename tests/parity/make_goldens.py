"""Trains tiny GPT-2 and Llama models in plain PyTorch and writes what the trainer must reproduce.

    python3 -m venv ENV && ENV/bin/pip install torch numpy && ENV/bin/python tests/parity/make_goldens.py

The models are written out here on purpose: they share nothing with the trainer, and nothing with a model library.
For each model NAME two files go into goldens/:

NAME.json   sizes, optimizer settings, the tensors in canonical order (name, shape), and per step: loss and gradient norm
            of the float32 run, and the loss of the same run in float64 (how far float32 itself is from the truth) and
            under autocast to bfloat16 (matrix products and what they give in bfloat16; norms, softmax and loss in float32)
NAME.bin    little-endian, without gaps: int32 tokens [steps, batch, sequence], int32 targets of the same shape (-1: ignored),
            float32 initial values of every tensor, float32 first-step gradients of every tensor (of the mean loss, not clipped)

Linear weights are [out, in]. The loss of a step is the mean over all counted targets of its global batch.
"""

import json
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional

STEPS, BATCH, SEQUENCE, VOCABULARY, HIDDEN, HEADS = 20, 8, 16, 65, 32, 4
OPTIMIZER = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "grad_clip": 2.0}  # both clipped and unclipped steps
NORM_EPSILON, ROPE_THETA = 1e-5, 10000.0


def causal_attention(q, k, v):
    """q, k, v [batch, heads, sequence, head_dim]"""
    sequence = q.shape[2]
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    future = torch.triu(torch.ones(sequence, sequence, dtype=torch.bool), diagonal=1)
    return torch.softmax(scores.masked_fill(future, -math.inf), dim=3) @ v


def split_heads(x, heads):
    batch, sequence, width = x.shape
    return x.view(batch, sequence, heads, width // heads).transpose(1, 2)


def join_heads(x):
    batch, heads, sequence, head_dim = x.shape
    return x.transpose(1, 2).reshape(batch, sequence, heads * head_dim)


class Gpt2Layer(nn.Module):
    def __init__(self, ffn):
        super().__init__()
        self.ln_1 = nn.LayerNorm(HIDDEN, eps=NORM_EPSILON)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(HIDDEN, 3 * HIDDEN), "c_proj": nn.Linear(HIDDEN, HIDDEN)})
        self.ln_2 = nn.LayerNorm(HIDDEN, eps=NORM_EPSILON)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(HIDDEN, ffn), "c_proj": nn.Linear(ffn, HIDDEN)})

    def forward(self, x):
        q, k, v = (split_heads(part, HEADS) for part in self.attn["c_attn"](self.ln_1(x)).split(HIDDEN, dim=2))
        x = x + self.attn["c_proj"](join_heads(causal_attention(q, k, v)))
        inner = self.mlp["c_fc"](self.ln_2(x))
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        return x + self.mlp["c_proj"](inner)


class Gpt2(nn.Module):
    def __init__(self, layers, ffn, **_):
        super().__init__()
        self.wpe = nn.Embedding(SEQUENCE, HIDDEN)
        self.wte = nn.Embedding(VOCABULARY, HIDDEN)
        self.h = nn.ModuleList([Gpt2Layer(ffn) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(HIDDEN, eps=NORM_EPSILON)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.ln_f(x) @ self.wte.weight.T


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + NORM_EPSILON) * self.weight


def rotate(x):
    """Element d turns with element d + head_dim/2 by position · theta^(-2d/head_dim)."""
    half = x.shape[3] // 2
    exponent = torch.arange(half, dtype=torch.float64) * 2 / x.shape[3]
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * ROPE_THETA**-exponent
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=3)


class LlamaLayer(nn.Module):
    def __init__(self, ffn, kv_heads):
        super().__init__()
        self.kv_heads = kv_heads
        kv_width = HIDDEN // HEADS * kv_heads

        def linear(width_in, width_out):
            return nn.Linear(width_in, width_out, bias=False)

        self.input_layernorm = RmsNorm()
        self.self_attn = nn.ModuleDict({"q_proj": linear(HIDDEN, HIDDEN), "k_proj": linear(HIDDEN, kv_width),
                                        "v_proj": linear(HIDDEN, kv_width), "o_proj": linear(HIDDEN, HIDDEN)})
        self.post_attention_layernorm = RmsNorm()
        self.mlp = nn.ModuleDict({"gate_proj": linear(HIDDEN, ffn), "up_proj": linear(HIDDEN, ffn),
                                  "down_proj": linear(ffn, HIDDEN)})

    def forward(self, x):
        normed = self.input_layernorm(x)
        q = rotate(split_heads(self.self_attn["q_proj"](normed), HEADS))
        k = rotate(split_heads(self.self_attn["k_proj"](normed), self.kv_heads))
        v = split_heads(self.self_attn["v_proj"](normed), self.kv_heads)
        k, v = (part.repeat_interleave(HEADS // self.kv_heads, dim=1) for part in (k, v))
        x = x + self.self_attn["o_proj"](join_heads(causal_attention(q, k, v)))
        normed = self.post_attention_layernorm(x)
        gate = self.mlp["gate_proj"](normed)
        return x + self.mlp["down_proj"](gate * torch.sigmoid(gate) * self.mlp["up_proj"](normed))


class Llama(nn.Module):
    def __init__(self, layers, ffn, kv_heads, tied):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.model.layers = nn.ModuleList([LlamaLayer(ffn, kv_heads) for _ in range(layers)])
        self.model.norm = RmsNorm()
        if not tied:
            self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.tied = tied

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x) @ (self.model.embed_tokens if self.tied else self.lm_head).weight.T


def initialise(model, generator):
    """Large enough that every non-linearity bends; gains and biases away from 1 and 0, so that each matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if parameter.dim() == 2:
                parameter.copy_(noise * (0.3 if "wte" in name or "embed" in name else 0.15))
            else:
                parameter.copy_(noise * 0.1 + (1.0 if name.endswith("weight") else 0.0))


def batches(generator):
    """Sequences in which a token mostly decides the next, and about one target in ten ignored, unevenly over the rows."""
    tokens = torch.empty(STEPS, BATCH, SEQUENCE + 1, dtype=torch.int64)
    tokens[:, :, 0] = torch.randint(VOCABULARY, (STEPS, BATCH), generator=generator)
    for i in range(SEQUENCE):
        noise = torch.randint(VOCABULARY, (STEPS, BATCH), generator=generator)
        surprise = torch.rand((STEPS, BATCH), generator=generator) < 0.1
        tokens[:, :, i + 1] = torch.where(surprise, noise, (5 * tokens[:, :, i] + 3) % VOCABULARY)
    targets = tokens[:, :, 1:].clone()
    ignored = torch.rand(targets.shape, generator=generator) < torch.arange(BATCH)[None, :, None] * 0.03
    targets[ignored] = -1
    return tokens[:, :, :-1].contiguous(), targets


def train(model, tokens, targets, autocast=False):
    """-> losses, gradient norms, first gradients by name"""
    decayed = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "wpe.weight"]
    plain = [p for n, p in model.named_parameters() if p.dim() == 1 or n == "wpe.weight"]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                                  eps=OPTIMIZER["epsilon"], foreach=False)
    losses, norms, first = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(tokens[step])
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets[step].view(-1), ignore_index=-1)
        loss.backward()
        if step == 0:
            first = {name: p.grad.clone() for name, p in model.named_parameters()}
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["grad_clip"]).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, first


def make(name, family, seed, **sizes):
    generator = torch.Generator().manual_seed(seed)
    build = Gpt2 if family == "gpt2" else Llama
    model = build(**sizes)
    initialise(model, generator)
    tokens, targets = batches(generator)
    initial = {n: p.detach().clone() for n, p in model.named_parameters()}
    double_model = build(**sizes).double()
    double_model.load_state_dict(model.state_dict())
    bfloat16_model = build(**sizes)
    bfloat16_model.load_state_dict(model.state_dict())
    losses, norms, gradients = train(model, tokens, targets)
    bfloat16_losses, bfloat16_norms, _ = train(bfloat16_model, tokens, targets, autocast=True)
    double_losses, _, double_gradients = train(double_model, tokens, targets)

    folder = pathlib.Path(__file__).parent / "goldens"
    text = {"name": name,
            "model": {"family": family, "hidden": HIDDEN, "heads": HEADS, "vocab_size": VOCABULARY, "seq_len": SEQUENCE,
                      "norm_epsilon": NORM_EPSILON, "rope_theta": ROPE_THETA, "layers": sizes["layers"], "ffn": sizes["ffn"],
                      "kv_heads": sizes["kv_heads"], "tied_embeddings": sizes["tied"]},
            "optimizer": OPTIMIZER, "steps": STEPS, "batch": BATCH,
            "tensors": [{"name": n, "shape": list(p.shape)} for n, p in initial.items()],
            "losses": losses, "gradient_norms": norms, "double_losses": double_losses,
            "bfloat16_losses": bfloat16_losses, "bfloat16_gradient_norms": bfloat16_norms}
    (folder / f"{name}.json").write_text(json.dumps(text, indent=1) + "\n")
    with open(folder / f"{name}.bin", "wb") as file:
        for integers in (tokens, targets):
            file.write(integers.numpy().astype("<i4").tobytes())
        for tensors in (initial, gradients):
            for tensor in tensors.values():
                file.write(tensor.numpy().astype("<f4").tobytes())

    gap = max(abs(a - b) / b for a, b in zip(losses, double_losses))
    gradient_gap = max(((gradients[n] - g).abs().max() / g.abs().max()).item() for n, g in double_gradients.items())
    bfloat16_gap = max(abs(a - b) / b for a, b in zip(bfloat16_losses, losses))
    print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, norm {norms[0]:.3f} -> {norms[-1]:.3f}; "
          f"float32 against float64: losses {gap:.1e}, first gradients {gradient_gap:.1e}; "
          f"bfloat16 against float32: losses {bfloat16_gap:.1e}")


torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
make("gpt2", "gpt2", seed=1, layers=2, ffn=128, kv_heads=4, tied=True)
make("llama", "llama", seed=2, layers=2, ffn=80, kv_heads=2, tied=False)
make("llama-tied", "llama", seed=3, layers=1, ffn=80, kv_heads=1, tied=True)
