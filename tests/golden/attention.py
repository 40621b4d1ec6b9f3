"""Attention and its gradients as PyTorch computes them in float64, each by two ways."""

import math

import torch
import torch.nn.functional as F


def assert_close(what, a, b, tolerance):
    """Relative to the larger of 1 and the largest entry; NaN fails."""
    error = (a - b).abs().max().item() / max(1.0, b.abs().max().item())
    assert error <= tolerance, f"{what}: {error}"


def visible_keys(nq, nk, causal):
    """[nq, nk] of bool.

    Bottom-right aligned: key j is visible to query i iff j <= i + nk - nq. PyTorch's is_causal
    is top-left aligned, so the mask is written out; where nq = nk the two agree.
    """
    if not causal:
        return torch.ones(nq, nk, dtype=torch.bool)
    i = torch.arange(nq)[:, None]
    j = torch.arange(nk)[None, :]
    return j <= i + nk - nq


def attention(q, k, v, scale, causal):
    """float64 attention of one head: q [Nq, d], k and v [Nk, d] -> o [Nq, d], lse, m, l [Nq].

    o comes from PyTorch's own scaled_dot_product_attention, the statistics from its amax, exp,
    sum and logsumexp; each is checked against the other.
    """
    nq, nk = q.shape[0], k.shape[0]
    s = scale * (q @ k.T)
    visible = visible_keys(nq, nk, causal)
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


def gradients(q, k, v, do, dlse, scale, causal, keep=None, p=0.0):
    """float64 attention of a batch with its gradients, by autograd.

    q, do [B, H, Nq, d], k, v [B, Hkv, Nk, d], dlse [B, H, Nq]; query head h attends to
    key/value head h // (H / Hkv). With keep [B, H, Nq, Nk] of 0 and 1, dropout: the weights that
    it keeps are multiplied by 1 / (1 - p), the others are 0. -> dict of o, lse, dq, dk, dv.
    """
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))

    # Rows that see no key are left out of everything that is differentiated: softmax makes NaN
    # of them, and 0 times NaN would be NaN in the gradients of all keys.
    visible = visible_keys(q.shape[2], k.shape[2], causal)
    full = visible.any(dim=1)
    s = scale * (q[:, :, full] @ keys.transpose(2, 3))
    s = s.masked_fill(~visible[full], -math.inf)
    z = torch.ones_like(s) if keep is None else keep[:, :, full].double() / (1.0 - p)
    o_full = (z * torch.softmax(s, dim=3)) @ values
    lse_full = torch.logsumexp(s, dim=3)

    # The second way: PyTorch's own function (dropout with a given mask is not one of its ways).
    if keep is None:
        other = F.scaled_dot_product_attention(
            q[:, :, full], k, v, attn_mask=visible[full], scale=scale, enable_gqa=True
        )
        assert_close("o", o_full, other, 1e-12)
        for a, b in zip(
            torch.autograd.grad((o_full * do[:, :, full]).sum(), (q, k, v), retain_graph=True),
            torch.autograd.grad((other * do[:, :, full]).sum(), (q, k, v)),
        ):
            assert_close("gradients", a, b, 1e-11)

    loss = (o_full * do[:, :, full]).sum() + (lse_full * dlse[:, :, full]).sum()
    dq, dk, dv = torch.autograd.grad(loss, (q, k, v))
    o = torch.zeros_like(q)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float64)
    o[:, :, full] = o_full
    lse[:, :, full] = lse_full
    result = {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    assert torch.isfinite(torch.cat([x.flatten() for x in (o, lse_full, dq, dk, dv)])).all()
    return {name: x.detach() for name, x in result.items()}
