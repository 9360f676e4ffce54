import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa


def _one(q, kbuf, vbuf, locs, mask, scale):
    k = kbuf[locs].to(q.dtype).transpose(0, 1)
    v = vbuf[locs].to(q.dtype).transpose(0, 1)
    return sdpa(
        q.transpose(0, 1)[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=True
    )[0].transpose(0, 1)


def extend_attention_cpu(
    q,
    k,
    v,
    o,
    kbuf,
    vbuf,
    ks,
    vs,
    req_to_token,
    req_idx,
    seq_lens,
    ext_lens,
    ext_start,
    max_ext,
    scale,
    cap,
    is_cross,
    sw,
    enc,
    sinks,
    tree_mask,
    is_causal,
):
    tm = None
    if tree_mask is not None:
        n0 = int(ext_lens[0])
        tm = tree_mask.reshape(-1)[: len(ext_lens) * n0 * n0].view(-1, n0, n0).bool()
    for i in range(seq_lens.numel()):
        L, n, s = int(seq_lens[i]), int(ext_lens[i]), int(ext_start[i])
        if n == 0:
            continue
        locs = req_to_token[int(req_idx[i]), :L].long()
        mask = torch.ones(n, L, dtype=torch.bool)
        mask[:, L - n :] = (
            tm[i]
            if tm is not None
            else (torch.ones(n, n, dtype=torch.bool).tril() if is_causal else True)
        )
        o[s : s + n] = _one(q[s : s + n], kbuf, vbuf, locs, mask, scale)


def decode_attention_cpu(
    q,
    kbuf,
    vbuf,
    ks,
    vs,
    o,
    k,
    v,
    loc,
    logits,
    req_to_token,
    req_idx,
    seq_lens,
    scale,
    cap,
    is_cross,
    sw,
    enc,
    sinks,
):
    if k is not None:
        kbuf[loc] = k.view(-1, *kbuf.shape[1:]).to(kbuf.dtype)
        vbuf[loc] = v.view(-1, *vbuf.shape[1:]).to(vbuf.dtype)
    for i in range(seq_lens.numel()):
        L = int(seq_lens[i])
        o[i : i + 1] = _one(
            q[i : i + 1], kbuf, vbuf, req_to_token[int(req_idx[i]), :L].long(), None, scale
        )


def build_draft_decode_metadata_cpu(req_to_token, req_idx, seq_lens, topk, steps, pool_len):
    out = torch.zeros(seq_lens.numel() * topk, req_to_token.shape[1], dtype=req_to_token.dtype)
    for b in range(seq_lens.numel()):
        r, L = int(req_idx[b]), int(seq_lens[b])
        for t in range(topk):
            out[b * topk + t, :L] = req_to_token[r, :L]
            out[b * topk + t, L : L + steps] = req_to_token[r, L + t * steps : L + (t + 1) * steps]
    return out


torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
