"""Bags, segments, sparse products, pages, transducers and quantisation are judged."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip; usual

from gradwatch import check  # noqa: E402  # likewise
from gradwatch.harness.tracing import Untraceable  # noqa: E402  # likewise
from gradwatch.harness.tracing.traced import trace  # noqa: E402  # likewise

INDEX, STARTS = torch.tensor([0, 2, 1, 1, 4, 0]), torch.tensor([0, 2, 2])
SPREAD = INDEX[:, None].expand(6, 3)
PLACES = torch.tensor([[0, 1, 2, 2, 2], [1, 0, 0, 3, 3]])  # the last one twice
DATA = torch.arange(20) * 0.37 + 0.01
PAGES = torch.tensor([[2, 0], [1, 3]])
TARGETS = torch.tensor([[1, 2], [2, 1]])

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


def bag(**how):
    return lambda table: F.embedding_bag(INDEX, table, STARTS, **how)


def segments(how):
    return lambda x: torch.segment_reduce(x, how, lengths=torch.tensor([2, 0, 4]))


def scattered(how, **named):
    return lambda x, s: x.scatter_reduce(0, SPREAD, s, how, **named)


def sparse(values):
    return torch.sparse_coo_tensor(PLACES, values, (3, 4))


def held():
    """A sparse matrix that nothing is differentiated by."""
    return sparse(torch.arange(1.0, 6.0)).to_sparse_csr()


def compressed(layout):
    bounds, places = torch.tensor([0, 1, 2, 5]), torch.tensor([1, 0, 0, 2, 3])
    size = (3, 4) if layout == torch.sparse_csr else (4, 3)

    def product(values, x):
        held = torch.sparse_compressed_tensor(
            bounds, places, values, size, layout=layout
        )
        return held @ x

    return product


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True)


def paged(q, keys, values):
    """Keys and values lie in pages; of the first sequence 5 are in use."""
    k, v = (t[PAGES].flatten(1, 2).transpose(1, 2) for t in (keys, values))
    used = torch.arange(8) < torch.tensor([5, 8])[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=used)


def transducer(logits):
    """The loss of an RNN-T: Graves, Sequence transduction with RNNs, 2012."""
    log = logits.log_softmax(-1)
    blank = log[..., 0]
    index = TARGETS[:, None, :, None].expand(-1, log.shape[1], -1, 1)
    label = log[:, :, :-1].gather(-1, index)[..., 0]
    alpha = torch.cat([torch.zeros_like(blank[:, 0, :1]), label[:, 0].cumsum(1)], 1)
    for t in range(1, log.shape[1]):
        up = [alpha[:, 0] + blank[:, t - 1, 0]]
        for u in range(1, alpha.shape[1]):
            stay = alpha[:, u] + blank[:, t - 1, u]
            up.append(torch.logaddexp(stay, up[-1] + label[:, t, u - 1]))
        alpha = torch.stack(up, 1)
    return -(alpha[:, -1] + blank[:, -1, -1])


def per_tensor(x):
    return torch.fake_quantize_per_tensor_affine(x, 0.3, 1, -4, 3)


def per_channel(x):
    scale, zero = torch.linspace(0.1, 0.4, 6), torch.arange(6, dtype=torch.int32) - 3
    return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -4, 3)


def learnt(x, scale):
    zero = torch.zeros(1)
    step = torch._fake_quantize_learnable_per_tensor_affine
    return step(x, scale.abs() + 0.2, zero, -4, 3, 0.5)


def antialiased(x):
    return F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True)


JUDGED = {
    **{f"bag {how}": (bag(mode=how), [(5, 3)]) for how in ("sum", "mean", "max")},
    "bag without padding": (bag(mode="mean", padding_idx=1), [(5, 3)]),
    "weighted bag": (
        lambda table, w: bag(mode="sum", per_sample_weights=w)(table),
        [(5, 3), (6,)],
    ),
    "counts": (lambda x: x * torch.histc(DATA, 5, 0, 8), [(5,)]),
    "histogram": (lambda x: x * torch.histogram(DATA, 5).hist, [(5,)]),
    "soft histogram": (
        lambda x: torch.exp(-((x[:, None] - torch.linspace(-2, 2, 5)) ** 2)).sum(0),
        [(20,)],
    ),
    **{
        f"segments {how}": (segments(how), [(6, 3)])
        for how in ("sum", "mean", "max", "min", "prod")
    },
    **{
        f"scattered {how}": (scattered(how), [(5, 3), (6, 3)])
        for how in ("sum", "mean", "amax", "amin", "prod")
    },
    "scattered alone": (scattered("mean", include_self=False), [(5, 3), (6, 3)]),
    "sparse values": (lambda v, x: torch.sparse.mm(sparse(v), x), [(5,), (4, 2)]),
    "compressed rows": (compressed(torch.sparse_csr), [(5,), (4, 2)]),
    "compressed columns": (compressed(torch.sparse_csc), [(5,), (3, 2)]),
    "a sparse constant": (lambda x, a=held: a() @ x, [(4, 2)]),
    "made sparse": (lambda a, x: torch.sparse.mm(a.to_sparse(), x), [(3, 4), (4, 2)]),
    "made dense": (lambda v: sparse(v).coalesce().to_dense(), [(5,)]),
    "a sparse sum": (lambda v: torch.sparse.sum(sparse(v), 0).to_dense(), [(5,)]),
    "grouped attention": (grouped, [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)]),
    "paged attention": (paged, [(2, 2, 3, 8), (4, 4, 2, 8), (4, 4, 2, 8)]),
    "transducer": (transducer, [(2, 3, 3, 4)]),
    "quantised": (per_tensor, [(6, 5)]),
    "quantised by channel": (per_channel, [(6, 5)]),
    "a learnt scale": (learnt, [(6, 5), (1,)]),
    "antialiased": (antialiased, [(1, 2, 6, 7)]),
}


@pytest.mark.parametrize("name", JUDGED)
def test_pytorch_s_own_gradient_passes_and_a_larger_one_does_not(name):
    function, shapes = JUDGED[name]
    report = check(function, shapes=shapes, quick=True)
    assert report.passes, report

    def larger(*given):
        return function(*(x + 0.1 * (x - x.detach()) for x in given))

    report = check(function, larger, shapes=shapes, quick=True)
    wanted = {row.judgement.tensor for row in report.failures}
    assert len(wanted) == len(shapes), report


def straight(x, masked):
    """The quantisation of `per_tensor`, with a gradient of 1 inside of its range."""

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return per_tensor(x.detach())

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            level = torch.round(x / 0.3) + 1
            return dy * ((level >= -4) & (level <= 3)) if masked else dy

    return Straight.apply(x)


def test_beyond_its_range_a_quantisation_has_no_gradient():
    for masked in (True, False):
        report = check(
            per_tensor, lambda x, m=masked: straight(x, m), shapes=[(6, 5)], quick=True
        )
        assert report.passes == masked, report


def test_values_of_one_place_in_a_sparse_tensor_add_up():
    made = trace(lambda v: sparse(v).to_dense(), [torch.arange(1.0, 6.0)]).graph()
    assert made.outputs["y"].value.tolist() == [
        [0, 1, 0, 0],
        [2, 0, 0, 0],
        [3, 0, 0, 9],
    ]


def test_the_frequency_of_a_bag_s_index_is_its_own():
    """PyTorch's divides by that of another: results/pytorch/embedding_bag.py."""
    often = torch.tensor([2, 2, 1, 1, 1])[:, None]

    def right(table):
        return bag(mode="sum")(table / often + (table - table / often).detach())

    scaled = bag(mode="sum", scale_grad_by_freq=True)
    assert check(scaled, right, shapes=[(5, 3)], quick=True).passes
    assert not check(scaled, shapes=[(5, 3)], quick=True).passes


def test_what_cannot_be_judged_says_the_way_round():
    def function(x):
        return torch.sparse.sampled_addmm(held(), x[:, :3], x[:, 3:7])

    with pytest.raises(Untraceable, match="to_dense"):
        check(function, shapes=[(3, 10)], quick=True)
