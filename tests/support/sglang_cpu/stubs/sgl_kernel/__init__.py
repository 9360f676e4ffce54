"""Pure-torch stand-ins for the CPU ops SGLang imports from sgl_kernel (own code)."""

import torch, sys
import _mockpkg

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len
):
    o = 0
    for r, s, e in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        n = e - s
        req_to_token[r, s:e] = out_cache_loc[o : o + n].to(req_to_token.dtype)
        o += n


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    import ctypes

    src = src_loc.tolist()
    tgt = tgt_loc.tolist()
    for base, st in zip(data_ptrs.tolist(), strides.tolist()):
        bufs = [ctypes.string_at(base + a * st, st) for a in src]
        for b, t in zip(bufs, tgt):
            ctypes.memmove(base + t * st, b, st)


def assign_extend_cache_locs_cpu(
    req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len
):
    o = 0
    for r, s, e in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        out_cache_loc[o : o + e - s] = req_to_token[r, s:e].to(out_cache_loc.dtype)
        o += e - s


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_cols
):
    n = topk * num_cols
    for i, (r, s) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist())):
        out_cache_loc[i * n : (i + 1) * n] = req_to_token[r, s : s + n].to(out_cache_loc.dtype)


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    a = accept_tokens.reshape(-1)
    for i, n in enumerate(accept_lens.tolist()):
        bonus_tokens[i] = a[accept_stride * i + n - 1]


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    a = accept_index.reshape(-1)
    sel = a[a > -1].long()
    accept_out_cache_loc[: sel.numel()] = out_cache_loc[sel]


def rotate_input_ids_cpu(
    input_ids, extend_start_loc, extend_seq_lens, topk_index, select_index=None
):
    t = topk_index.reshape(-1)
    for i, (s, n) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist())):
        if n <= 0:
            continue
        input_ids[s : s + n - 1] = input_ids[s + 1 : s + n].clone()
        input_ids[int(select_index[i]) if select_index is not None else s + n - 1] = t[i]


def build_tree_kernel_efficient_cpu(
    parent_list,
    selected_index,
    seq_lens,
    tree_mask,
    positions,
    retrieve_index,
    next_token,
    next_sibling,
    topk,
    depth,
    n,
    mode,
):
    bs = seq_lens.numel()
    ri = retrieve_index.view(-1)
    nt = next_token.view(-1)
    ns = next_sibling.view(-1)
    tm = tree_mask.view(-1)
    ps = positions.view(-1)
    prefix = 0
    for b in range(bs):
        L = int(seq_lens[b])
        base = b * n
        ps[base] = L
        sel = selected_index[b].tolist()
        par = parent_list[b].tolist()
        pos_of = {}
        for k, v in enumerate(sel):
            pos_of.setdefault(v, k)

        def parent(k):
            tb = sel[k] // topk
            return 0 if tb == 0 else (pos_of[par[tb]] + 1 if par[tb] in pos_of else None)

        ri[base] = base
        for i in range(n - 1, 0, -1):
            ri[base + i] = base + i
            pp = parent(i - 1)
            if pp is None:
                continue
            old = int(nt[base + pp])
            nt[base + pp] = i
            if old != -1:
                ns[base + i] = old
        for x in range(n):
            o = (
                (n * n * b + prefix * n + (L + n) * x + L)
                if int(mode) == 0
                else (n * n * b + n * x)
            )
            tm[o] = True
            tm[o + 1 : o + n] = False
            if x:
                k = x - 1
                d = 0
                for _ in range(depth):
                    d += 1
                    tm[o + 1 + k] = True
                    pp = parent(k)
                    if pp in (0, None):
                        break
                    k = pp - 1
                ps[base + x] = L + d
        prefix += L


def verify_tree_greedy_cpu(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    bs, n = candidates.shape
    steps = accept_index.shape[1]
    tp = target_predict.reshape(-1)
    for b in range(bs):
        last = int(retrive_index[b, 0])
        accept_index[b, 0] = last
        cnt = 0
        cur = 0
        for _ in range(1, steps):
            cur = int(retrive_next_token[b, cur])
            tok = int(tp[last])
            hit = False
            while cur != -1:
                if int(candidates[b, cur]) == tok:
                    predicts[last] = tok
                    cnt += 1
                    last = int(retrive_index[b, cur])
                    accept_index[b, cnt] = last
                    hit = True
                    break
                cur = int(retrive_next_sibling[b, cur])
            if not hit:
                break
        accept_token_num[b] = cnt
        predicts[last] = int(tp[last])


class _Missing:
    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __call__(self, *a, **k):
        raise NotImplementedError("sgl_kernel stub: " + self.__name__)

    def __getattr__(self, n):
        if n.startswith("__"):
            raise AttributeError(n)
        return _Missing(self.__name__ + "." + n)


_missing = _Missing


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(name)


class _Sub(_mockpkg.Mock):
    def __getattr__(self, n):
        if n.startswith("__"):
            raise AttributeError(n)
        return _missing(self.__name__ + "." + n)


class _L(_mockpkg._Loader):
    def create_module(self, spec):
        return _Sub(spec.name)


class _F(_mockpkg.Finder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            import importlib.machinery

            return importlib.machinery.ModuleSpec(name, _L(), is_package=True)


sys.meta_path.append(_F("sgl_kernel"))
from ._attn import build_draft_decode_metadata_cpu
