def reconstruct_indices_from_tree_mask(
    tree_mask, seq_lens, positions, retrieve_index, next_token, next_sibling, bs, n
):
    m = tree_mask.reshape(-1)[: bs * n * n].view(bs, n, n).bool().tolist()
    ps, ri, nt, ns = (t.view(-1) for t in (positions, retrieve_index, next_token, next_sibling))
    for b in range(bs):
        anc = [[j for j in range(i) if m[b][i][j]] for i in range(n)]
        par = [a[-1] if a else -1 for a in anc]
        L = int(seq_lens[b])
        for t in range(n):
            o = b * n + t
            ps[o] = L + len(anc[t])
            ri[o] = o
            nt[o] = next((k for k in range(t + 1, n) if t in anc[k]), -1)
            ns[o] = (
                next((k for k in range(t + 1, n) if par[k] == par[t]), -1) if par[t] >= 0 else -1
            )
